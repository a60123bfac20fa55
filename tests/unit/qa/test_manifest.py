import json

import pytest
from tests.unit.qa.subjects import GOOD_MANIFEST, asset

from temper.qa import builtin, manifest, params
from temper.qa.manifest import of_tree
from temper.runtime.errors import Rejected

GOOD = manifest.parse(GOOD_MANIFEST)
RG = of_tree(asset("reasoning_gym"))


def test_a_misspelt_key_is_refused_with_the_nearest_name():
    with pytest.raises(Rejected) as refused:
        manifest.parse(GOOD_MANIFEST.replace("verify_s", "verfy_s"))
    assert "limits.verfy_s" in str(refused.value)
    assert "did you mean 'verify_s'?" in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('version = "1.0.0"', 'version = "1.0"', "version"),
        ('name = "double"', 'name = "Double It"', "name"),
        ("max = 1.0", "max = 0.0", "reward"),
        ("max = 1.0", "max = inf", "reward"),
        ('styles = ["direct"]', 'styles = ["magic"]', "oracle.styles"),
        ('mode = "none"', 'mode = "wide"', "network.mode"),
        ('mode = "none"', 'mode = "allow"\nhosts = [{ name = "pypi.org" }]', "network.hosts"),
        ("setup_s = 5.0", "setup_s = -1.0", "limits.setup_s"),
        ('owner = "tests"', "", "owner"),
    ],
)
def test_an_impossible_value_names_its_key(old, new, told):
    with pytest.raises(Rejected) as refused:
        manifest.parse(GOOD_MANIFEST.replace(old, new, 1))
    assert told in str(refused.value)


def test_text_that_is_not_toml_is_refused():
    with pytest.raises(Rejected, match="not TOML"):
        manifest.parse("name = ")


def test_an_asset_registers_its_own_name_or_its_families():
    assert GOOD.environments() == ("double",)
    assert len(RG.environments()) == 106
    assert "rg/chain_sum" in RG.environments()


def test_every_built_in_manifest_is_complete():
    for name in builtin.names():
        read = of_tree(asset(name))
        assert all(getattr(read.limits, field) for field in type(read.limits).model_fields)
        assert read.network is not None


def test_parameters_are_canonical_and_complete():
    assert params.effective(GOOD, "double", "") == '{"step":1}'
    assert params.effective(GOOD, "double", '{ "step" : 3 }') == '{"step":3}'


def test_an_unknown_parameter_is_refused_with_the_nearest_name():
    with pytest.raises(Rejected) as refused:
        params.effective(GOOD, "double", '{"stp":2}')
    assert refused.value.field == "params_json.stp"
    assert refused.value.hint == "did you mean 'step'?"


@pytest.mark.parametrize("value", ['"2"', "2.5", "true", "[2]", "null"])
def test_a_parameter_of_another_type_is_refused(value):
    with pytest.raises(Rejected, match="must be of type int"):
        params.effective(GOOD, "double", f'{{"step":{value}}}')


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_parameters_that_are_no_object_are_refused(text):
    with pytest.raises(Rejected):
        params.effective(GOOD, "double", text)


def test_a_family_gets_its_name_and_keeps_its_own_parameters():
    found = json.loads(params.effective(RG, "rg/chain_sum", '{"max_terms":3}'))
    assert found == {"binary": False, "family": "chain_sum", "max_terms": 3}
    with pytest.raises(Rejected, match="says 'chain_sum'"):
        params.effective(RG, "rg/chain_sum", '{"family":"gcd"}')
