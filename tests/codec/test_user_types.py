"""The users' own types: how they are found, and what happens when they have changed since."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import InitVar, dataclass, field, make_dataclass
from enum import Enum, Flag
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import codec_samples
import msgspec
import pytest
from codec_samples import Account, Color, Compact, Mode, Outer, Pair, Plain, Point, Rights, Size, Slotted, same

from millpond.codec import Codec, NotEncodable
from millpond.errors import Incompatible

codec = Codec()


def in_a_fresh_process(program: str) -> str:
    """What a program prints that shares nothing with this process but the library."""
    done = subprocess.run(
        [sys.executable, "-c", "from millpond.codec import *\n" + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(1, (2,)), '{"$type":"codec_samples:Point","fields":{"x":1,"y":{"$tuple":[2]}}}'),
        (Outer.Inner(3), '{"$type":"codec_samples:Outer.Inner","fields":{"n":3}}'),
        (Slotted(1), '{"$type":"codec_samples:Slotted","fields":{"left":1,"right":null}}'),
        (Compact(1), '{"$type":"codec_samples:Compact","fields":{"first_field":1,"second_field":2}}'),
        (Pair(1, 2), '{"$type":"codec_samples:Pair","fields":{"left":1,"right":2}}'),
        (Color.CRIMSON, '{"$enum":"codec_samples:Color","name":"RED"}'),
        (Mode.FAST, '{"$enum":"codec_samples:Mode","name":"FAST"}'),
        (Size.LARGE, '{"$enum":"codec_samples:Size","name":"LARGE"}'),
        (Rights.READ | Rights.RUN, '{"$enum":"codec_samples:Rights","value":5}'),
    ],
)
def test_the_text_of_a_type_names_it_and_its_fields(value, text):
    assert codec.encode(value) == text.encode()
    assert same(codec.decode(text.encode()), value)


def test_no_init_or_post_init_of_a_dataclass_runs_again():
    calls = []

    @dataclass(frozen=True)
    class Counted:
        n: int
        twice: int = field(init=False)
        plus: InitVar[int] = 0
        kept: ClassVar[int] = 7

        def __post_init__(self, plus: int) -> None:
            calls.append(self.n)
            object.__setattr__(self, "twice", 2 * self.n + plus)

    value = Counted(3, plus=1)
    back = codec.decode(codec.encode(value))
    assert back == value and back.twice == 7 and type(back) is Counted
    assert calls == [3]


def test_a_field_that_was_never_set_stays_unset():
    @dataclass
    class Lazy:
        n: int
        later: int = field(init=False)

    back = codec.decode(codec.encode(Lazy(1)))
    assert back.n == 1 and not hasattr(back, "later")


def test_a_cached_property_is_no_field_and_is_computed_again():
    @dataclass
    class Square:
        side: int

        @cached_property
        def area(self) -> int:
            return self.side**2

    square = Square(3)
    assert square.area == 9
    back = codec.decode(codec.encode(square))
    assert back == square and vars(back) == {"side": 3} and back.area == 9


def test_an_attribute_that_is_no_field_is_refused_rather_than_lost():
    account = Account("ada")
    account.note = "!"  # type: ignore[attr-defined]
    with pytest.raises(NotEncodable) as e:
        codec.encode({"accounts": [account]})
    assert str(e.value) == (
        "value[\"accounts\"][0]: cannot store the attribute 'note' of codec_samples.Account, which is not a "
        "field; declare it as a field, for example note: … = field(init=False)"
    )


def test_a_dataclass_that_is_also_a_dict_is_refused():
    @dataclass
    class Both(dict[str, int]):
        n: int = 0

    with pytest.raises(NotEncodable, match=r"it would come back as a plain dict: store dict\(…\) of it instead"):
        codec.encode(Both())


def test_the_subclass_of_a_dataclass_comes_back_as_the_subclass():
    class Special(Point):
        pass

    assert type(codec.decode(codec.encode(Special(1, 2)))) is Special


def test_a_field_with_a_property_behind_it_is_stored_through_it():
    @dataclass
    class Guarded:
        n: int

    def read(self):
        return self._n

    def write(self, n):
        self.__dict__["n"] = n

    Guarded.n = property(lambda self: self.__dict__["n"], write)  # type: ignore[assignment]
    back = codec.decode(codec.encode(Guarded(4)))
    assert back.n == 4


def test_stored_fields_that_the_type_no_longer_has_are_left_out():
    for name in ("Account", "Plain", "Pair", "Slotted"):
        fields = '{"owner":"a","name":"a","left":1,"gone":{"$tuple":[]}}'
        back = codec.decode(f'{{"$type":"codec_samples:{name}","fields":{fields}}}'.encode())
        assert type(back) is getattr(codec_samples, name)
        assert not hasattr(back, "gone")


def test_fields_that_the_stored_value_lacks_take_their_defaults():
    def stored(name, fields):
        return codec.decode(f'{{"$type":"codec_samples:{name}","fields":{fields}}}'.encode())

    first, second = (stored("Account", '{"owner":"a"}') for _ in range(2))
    assert first == Account("a", 0, [])
    assert first.history is not second.history
    assert stored("Slotted", '{"left":1}') == Slotted(1, None)
    assert stored("Plain", '{"name":"a"}') == Plain("a", None)
    assert stored("Compact", '{"first_field":1}') == Compact(1, 2)
    assert stored("Pair", '{"left":1}') == Pair(1, None)


@pytest.mark.parametrize(
    ("name", "lacking"), [("Account", "owner"), ("Point", "x"), ("Plain", "name"), ("Pair", "left")]
)
def test_a_lacking_field_without_a_default_asks_for_a_migration(name, lacking):
    with pytest.raises(Incompatible) as e:
        codec.decode(f'{{"$type":"codec_samples:{name}","fields":{{}}}}'.encode())
    assert str(e.value) == (
        f"stored value of type codec_samples.{name}: expected a field {lacking!r}, which the stored value "
        "lacks; give the field a default, or migrate the state"
    )


def test_a_struct_that_refuses_what_was_stored_says_so():
    class Positive(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("n is negative")

    value = Positive(1)
    value.n = -1
    with pytest.raises(Incompatible, match=r"its constructor raised ValueError: n is negative; let its __post_init__"):
        codec.decode(codec.encode(value))


def test_structs_with_unset_fields_come_back():
    class Partial(msgspec.Struct, kw_only=True):
        a: int | msgspec.UnsetType = msgspec.UNSET
        b: Any = 3

    for value in (Partial(), Partial(a=1, b=msgspec.UNSET)):
        assert codec.decode(codec.encode(value)) == value


def test_a_named_tuple_with_a_new_of_its_own_is_built_without_it():
    class Base(NamedTuple):
        n: int

    class Checked(Base):
        def __new__(cls, text: str) -> Checked:
            return super().__new__(cls, int(text))

    value = Checked("3")
    back = codec.decode(codec.encode(value))
    assert back == value and type(back) is Checked


def test_an_enum_member_that_is_gone_asks_for_a_migration():
    with pytest.raises(Incompatible) as e:
        codec.decode(b'{"$enum":"codec_samples:Color","name":"BLUE"}')
    assert str(e.value) == (
        "stored value: expected a member 'BLUE' in 'codec_samples:Color', which has RED, GREEN, CRIMSON; "
        "add it again, or migrate the state"
    )
    with pytest.raises(Incompatible, match=r"expected a member 64 in 'codec_samples:Rights', which has READ"):
        codec.decode(b'{"$enum":"codec_samples:Rights","value":64}')


def test_a_name_that_now_belongs_to_another_kind_of_type_is_not_mistaken_for_it():
    with pytest.raises(Incompatible, match=r"expected 'codec_samples:Color' to be a type with fields, as it was"):
        codec.decode(b'{"$type":"codec_samples:Color","fields":{}}')
    with pytest.raises(Incompatible, match=r"expected 'codec_samples:Point' to be an Enum, as it was"):
        codec.decode(b'{"$enum":"codec_samples:Point","name":"x"}')


@pytest.mark.parametrize("name", ["os:system", "builtins:dict", "nowhere:Order", "codec_samples:Outer.Gone", "odd", ""])
def test_stored_data_can_only_name_types_that_are_data(name):
    text = f'[{{"$type":"{name}","fields":{{"a":{{"$tuple":[1]}}}}}}]'.encode()
    with pytest.raises(Incompatible) as e:
        codec.decode(text)
    assert str(e.value) == (
        f"stored value: expected the type {name!r} in this process, but no loaded module has it; import its "
        "module first, or name the class where the state or stream is declared (type=…)"
    )
    assert Codec(unknown="plain").decode(text) == [{"a": (1,)}]


def test_decoding_imports_no_module_and_asks_no_module_hook():
    assert (
        in_a_fresh_process("""
        import sys, types
        lazy = types.ModuleType("lazy")
        lazy.__getattr__ = lambda name: print("asked for", name)
        sys.modules["lazy"] = lazy
        before = set(sys.modules)
        for name in ("lazy:Order", "this:Order", "antigravity:Order"):
            Codec(unknown="plain").decode(b'{"$type":"%s","fields":{}}' % name.encode())
        print(sorted(set(sys.modules) - before))
        """)
        == "[]"
    )


def test_unknown_types_can_be_read_as_plain_data():
    plain = Codec(unknown="plain")
    order = b'{"$type":"shop:Order","fields":{"id":1,"at":{"$date":"2024-01-01"}}}'
    assert plain.decode(order)["id"] == 1
    assert plain.decode(b'{"$enum":"shop:Color","name":"RED"}') == "RED"
    assert plain.decode(b'{"$enum":"shop:Rights","value":3}') == 3
    assert plain.decode(b'{"$set":[{"$type":"shop:Id","fields":{"n":1}}]}') == [{"n": 1}]
    assert plain.decode(b'{"$dict":[[{"$type":"shop:Id","fields":{"n":1}},2]]}') == [[{"n": 1}, 2]]


def test_a_local_type_is_found_where_it_was_encoded_before():
    @dataclass
    class Local:
        n: int

    back = Codec().decode(Codec().encode(Local(1)))
    assert type(back) is Local


LOCAL = """
    from dataclasses import dataclass
    from enum import Enum
    import msgspec
    def make():
        class Color(Enum):
            RED = 1
        class Item(msgspec.Struct):
            sku: str
            color: Color
        @dataclass
        class Order:
            items: list[Item] | None
            parent: "Order | None" = None
        return Order, Item, Color
    Order, Item, Color = make()
    text = b'{"$type":"__main__:make.<locals>.Order","fields":{"items":[{"$type":"__main__:make.<locals>.Item",'
    text += b'"fields":{"sku":"a","color":{"$enum":"__main__:make.<locals>.Color","name":"RED"}}}]}}'
"""


def test_local_types_are_found_when_they_are_given_or_annotated_on_one_that_is():
    # `parent` cannot be resolved outside the function; the types around it are found all the same.
    assert in_a_fresh_process(LOCAL + "    print(Codec(types=[dict[str, Order]]).decode(text).items[0].color)") == (
        "Color.RED"
    )
    assert in_a_fresh_process(LOCAL + "    print(Codec(types=[Order, Item, Color]).decode(text).items[0].sku)") == "a"


def test_local_types_that_are_not_given_are_unknown():
    program = LOCAL + "    print(Codec(unknown='plain').decode(text)['items'][0]['color'])"
    assert in_a_fresh_process(program) == "RED"


def test_types_of_the_main_program_are_found():
    assert (
        in_a_fresh_process("""
        from dataclasses import dataclass
        @dataclass
        class Order:
            id: int
        print(Codec().decode(b'{"$type":"__main__:Order","fields":{"id":3}}'))
        """)
        == "Order(id=3)"
    )


def test_types_that_are_given_come_before_others_of_the_same_name():
    ours = make_dataclass("Point", ["x", "y"])
    ours.__module__ = "codec_samples"
    text = codec.encode(Point(1, 2))
    assert type(Codec(types=[ours]).decode(text)) is ours
    assert type(Codec().decode(text)) is Point


def test_plain_types_may_be_given_and_change_nothing():
    assert Codec(types=[int, dict, list[int], str | None, Any]).decode(b"[1]") == [1]


def test_an_enum_of_dataclasses_is_an_enum():
    @dataclass(frozen=True)
    class Spec:
        n: int

    class Choice(Spec, Enum):
        A = 1

    class NoFlag(Flag):
        NONE = 0

    assert codec.decode(codec.encode([Choice.A, NoFlag.NONE])) == [Choice.A, NoFlag.NONE]
