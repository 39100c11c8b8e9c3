"""`framework: none | paper | flow`: what it turns on, what can be set alone, and `robust` of earlier versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import small_config
from ffcil.config.flow import FLOW_PARTS
from ffcil.config.resolve import describe_fields, parse_assignments, resolve
from ffcil.config.settings import RunConfig
from ffcil.errors import InputError
from ffcil.methods import METHODS, complete, find_method
from ffcil.methods.framework import Framework

OFF = {
    "adjust": 0.0,
    "growth": 0.0,
    "enough": 1,
    "share": 0.0,
    "follow": False,
    "min_steps": 1,
    "comparable": False,
    "shared_ridge": False,
    "whiten": False,
}


def resolved(method: str, **fields: Any) -> Framework:
    learner = find_method(method)
    wanted = {part.needs or part.acts_on for part in FLOW_PARTS.values()} - {""}
    has = {attribute for attribute in wanted if getattr(learner, attribute, False)}
    return Framework.resolve(small_config(method=method, **fields), learner.own_alignment, learner.pretrained, has)


def flow_of(framework: Framework) -> dict[str, Any]:
    return {name: getattr(framework, name) for name in OFF}


@pytest.mark.parametrize("framework", ["none", "paper"])
@pytest.mark.parametrize("method", ["icarl", "replay", "simplecil"])
def test_without_flow_all_its_parts_are_off(method: str, framework: str) -> None:
    made = resolved(method, framework=framework)
    assert flow_of(made) == OFF
    assert made.describe().keys() == {"reduction", "alignment", "ha"}  # as earlier versions wrote it


@pytest.mark.parametrize(
    ("method", "parts"), [("icarl", ("adjust", "growth")), ("der", ("adjust",)), ("lwf", ("adjust",))]
)
def test_flow_adjusts_the_loss_and_does_not_align_conventional_methods(method: str, parts: tuple[str, ...]) -> None:
    made = resolved(method, framework="flow")
    on = {name: FLOW_PARTS[name].on for name in parts}
    assert flow_of(made) == {**OFF, **on}
    assert made.describe() == {"reduction": "mean", "alignment": "none", "ha": False, "flow": on}


def test_flow_of_pretrained_methods() -> None:
    made = resolved("mos", framework="flow")
    on = {name: FLOW_PARTS[name].on for name in ("enough", "min_steps", "comparable", "shared_ridge")}
    assert flow_of(made) == {**OFF, **on}
    assert made.describe() == {"reduction": "mean", "alignment": "none", "ha": False, "flow": on}
    assert on["enough"] > 1
    assert on["min_steps"] > 1


@pytest.mark.parametrize("name", [name for name, part in FLOW_PARTS.items() if part.needs])
def test_a_part_names_the_built_in_methods_that_it_is_for(name: str) -> None:
    built_in = {name: method for name, method in METHODS.items() if method.__module__.startswith("ffcil.")}
    part = FLOW_PARTS[name]
    assert part.methods == tuple(sorted(n for n, method in built_in.items() if getattr(method, part.needs, False)))


def test_flow_whitens_where_features_are_compared_with_class_means() -> None:
    for method in FLOW_PARTS["whiten"].methods:
        made = resolved(method, framework="flow")
        assert (made.whiten, made.comparable) == (True, False)  # whitened cosines are comparable
        assert resolved(method, framework="flow", flow={"whiten": False}).comparable
        if find_method(method).compares_spaces:  # type: ignore[attr-defined]
            assert resolved(method, framework="flow", flow={"comparable": True}).comparable
        assert not resolved(method, framework="flow", ha={"use": True}).whiten
        with pytest.raises(
            InputError, match=r"^flow.whiten=true and HA exclude each other: set flow.whiten=false, or ha.use=false\.$"
        ):
            resolved(method, framework="paper", flow={"whiten": True})


def test_runs_that_stored_flow_before_it_gathered_classes_stay_as_they_were() -> None:
    now = resolve("glyphs", {"method": "icarl", "framework": "flow"})
    stored = now.model_dump(mode="json")
    del stored["flow"]["growth"], stored["flow"]["whiten"]
    assert RunConfig.model_validate(stored).flow.growth == 0
    assert RunConfig.model_validate({**stored, "method": "der"}).flow.growth is None  # it has no effect there
    assert RunConfig.model_validate({**stored, "framework": "none"}).flow.growth is None
    given = RunConfig.model_validate({**stored, "flow": {"adjust": 0.5}})  # a setting, which does not store all parts
    assert given.flow.growth is None


@pytest.mark.parametrize("name", FLOW_PARTS)
@pytest.mark.parametrize("method", ["cllora", "icarl"])
def test_a_user_who_turns_one_part_off_keeps_the_others(method: str, name: str) -> None:
    whole, less = (
        flow_of(resolved(method, framework="flow", flow=flow)) for flow in ({}, {name: FLOW_PARTS[name].off})
    )
    freed = {"comparable": True} if (method, name) == ("cllora", "whiten") else {}  # it is off beside `whiten`
    assert less == {**whole, name: FLOW_PARTS[name].off, **freed}


def test_runs_that_stored_flow_before_it_whitened_stay_as_they_were() -> None:
    now = resolve("cars-vit-tiny", {"method": "cllora", "framework": "flow"})
    stored = now.model_dump(mode="json")
    del stored["flow"]["whiten"]
    assert RunConfig.model_validate(stored).flow.whiten is False
    assert RunConfig.model_validate({**stored, "method": "moal"}).flow.whiten is None  # it has no effect there
    assert RunConfig.model_validate({**stored, "framework": "none"}).flow.whiten is None


@pytest.mark.parametrize(
    ("method", "fields", "expected"),
    [
        ("icarl", {"flow": {"growth": 0.2}}, {"reduction": "mean", "alignment": "wa", "flow": {"growth": 0.2}}),
        ("icarl", {"framework": "flow", "flow": {"growth": 0}}, {"flow": {"adjust": 1.0}}),
        ("icarl", {"flow": {"adjust": 1.0}}, {"reduction": "mean", "alignment": "wa", "flow": {"adjust": 1.0}}),
        ("icarl", {"framework": "flow", "flow": {"adjust": 0}}, {"reduction": "mean", "alignment": "none"}),
        (
            "icarl",
            {"framework": "flow", "alignment": "wa"},
            {"alignment": "wa", "flow": {"adjust": 1.0, "growth": 0.1}},
        ),
        ("icarl", {"framework": "flow", "reduction": "class_wise_mean"}, {"reduction": "class_wise_mean"}),
        ("icarl", {"framework": "paper", "flow": {"adjust": 2.0}}, {"alignment": "diwa", "flow": {"adjust": 2.0}}),
        ("moal", {"flow": {"shared_ridge": True}}, {"flow": {"shared_ridge": True}}),
        ("moal", {"framework": "flow", "ha": {"use": True}}, {"ha": True, "reduction": "mean"}),
        ("moal", {"framework": "flow", "flow": {"enough": 1, "min_steps": 1, "comparable": False}}, {}),
    ],
)
def test_each_part_can_be_set_alone(method: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    described = resolved(method, **fields).describe()
    assert {name: described[name] for name in expected} == expected
    if fields.get("flow", {}).get("enough") == 1:
        assert described["flow"] == {"shared_ridge": True}


@pytest.mark.parametrize(
    ("method", "field", "value", "kind"),
    [
        ("simplecil", "adjust", 1.0, "a pre-trained method"),
        ("simplecil", "growth", 0.1, "a pre-trained method"),
        ("der", "growth", 0.1, "which does not train the same network at every step on exemplars"),
        ("lwf", "growth", 0.1, "which does not train the same network at every step on exemplars"),
        ("icarl", "enough", 3, "which trains from scratch"),
        ("icarl", "min_steps", 50, "which trains from scratch"),
        ("icarl", "comparable", True, "which trains from scratch"),
        ("icarl", "shared_ridge", True, "which trains from scratch"),
        ("icarl", "whiten", True, "which trains from scratch"),
        ("tuna", "share", 0.5, "which does not compare classes in the feature spaces of different steps"),
        ("moal", "share", 0.5, "which does not compare classes in the feature spaces of different steps"),
        ("simplecil", "enough", 3, "which tunes its network only by options of its own, or never"),
        ("anyarrival", "min_steps", 50, "which tunes its network only by options of its own, or never"),
        ("mos", "comparable", True, "which does not compare classes in the feature spaces of different steps"),
        ("ease", "shared_ridge", True, "which has no analytic head"),
        ("ease", "follow", True, "whose later steps do not change the space of stored class means"),
        ("moal", "whiten", True, "which does not compare features with class means"),
    ],
)
def test_a_part_for_the_other_kind_of_method_is_an_error(method: str, field: str, value: Any, kind: str) -> None:
    with pytest.raises(InputError) as caught:
        resolved(method, framework="flow", flow={field: value})
    given = str(value).lower()
    assert str(caught.value) == f"flow.{field}={given} is not supported by {method!r}, {kind}: leave it at null."
    assert flow_of(resolved(method, flow={field: OFF[field]})) == OFF


def test_the_help_states_the_constants_in_use() -> None:
    about = {row["name"]: row["about"] for row in describe_fields()}
    for name in ("adjust", "growth", "enough", "min_steps"):
        part = FLOW_PARTS[name]
        assert about[f"flow.{name}"].endswith(f"null: {part.on:g} if `framework` is `flow`, else {part.off:g}.")


# --- `robust` of earlier versions -----------------------------------------------------------------------------------


def test_robust_is_translated_wherever_it_is_given(tmp_path: Path) -> None:
    assert resolve("glyphs", {"robust": True}).framework == "paper"
    assert resolve("glyphs", {"robust": False}).framework == "none"
    assert resolve("glyphs", parse_assignments(["robust=true"])) == resolve("glyphs", {"framework": "paper"})
    earlier = resolve("glyphs").model_dump(mode="json", exclude={"framework", "flow"}) | {"robust": True}
    assert RunConfig.model_validate(earlier) == resolve("glyphs", {"framework": "paper"})
    for name, content in (("config.json", earlier), ("icarl.run.json", {"config": earlier, "records": []})):
        (tmp_path / name).write_text(json.dumps(content))
        assert resolve(str(tmp_path / name)) == resolve("glyphs", {"framework": "paper"})


def test_the_later_of_robust_and_framework_wins(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.json"
    recipe.write_text(json.dumps(resolve("glyphs", {"framework": "flow"}).model_dump(mode="json")))
    assert resolve(str(recipe)).framework == "flow"
    assert resolve(str(recipe), {"robust": False}).framework == "none"
    assert resolve(str(recipe), {"robust": True}, {"framework": "flow"}).framework == "flow"
    assert resolve("glyphs", {"robust": True, "framework": "paper"}).framework == "paper"


@pytest.mark.parametrize(("robust", "framework"), [(True, "flow"), (False, "flow"), (True, "none")])
def test_robust_and_framework_that_contradict_are_one_sentence(robust: bool, framework: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve("glyphs", {"robust": robust, "framework": framework})
    assert str(caught.value) == f"robust={str(robust).lower()} contradicts framework={framework}: drop robust."


@pytest.mark.parametrize(
    ("fields", "identity"),
    [
        ({"method": "icarl", "framework": "none"}, "b74c3ea595cb"),
        ({"method": "icarl", "framework": "paper"}, "6f8d2f601aeb"),
        ({"method": "der", "reduction": "class_wise_mean", "arrivals": {"sizes": [1, 4, 2]}}, "517df7391bd6"),
        ({"method": "simplecil", "framework": "paper", "ha": {"surrogates": 0}}, "6b538843820a"),
        ({"method": "der", "framework": "flow"}, "4e0d9d73a160"),
    ],
)
def test_configurations_of_the_earlier_version_keep_their_identity(fields: dict[str, Any], identity: str) -> None:
    """The literals were computed by the version that had `robust`, so folders of its runs are found again."""
    assert complete(resolve("glyphs", fields)).identity() == identity


def test_flow_and_each_of_its_parts_change_the_identity() -> None:
    changes = [{}, {"framework": "paper"}, {"framework": "flow"}, {"flow": {"adjust": 1.0}}, {"flow": {"enough": 2}}]
    assert len({resolve("glyphs", change).identity() for change in changes}) == len(changes)
