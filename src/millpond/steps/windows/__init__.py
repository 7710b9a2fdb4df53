"""Windows: rows of a key put together by time, by pauses or by number.

Read first: `window_step` (the step of a program), then `running` (the same step, started for one batch).
    definitions, triggers          what the user writes: mp.tumbling(…), mp.triggers.every_rows(…)
    assigner                       the contract of a kind of window: which windows hold a row, and when they close
    hopping sessions sliding counting global_window    one assigner each; session_merge and sliding_cache help
    row_windows, columnar/         the two stores of windows; columnar/choice decides which one a batch uses
    cell_names                     the names of windows in the state, the same for both
    panes, late_rows, state_rows   output rows, rows that came too late, and the view from outside
    trigger_state, key_state       what is stored for triggers and keys
A new kind of window is a class in `definitions`, an assigner in a module of its own, and a line in `running.ASSIGNERS`.
"""
