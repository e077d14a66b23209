#!/usr/bin/env python3
"""Writes tests/fixtures/grammar/schemas.json: schemas as clients send them, with texts that fulfil them and texts that do not.

Needs the package jsonschema (4.x), which decides; a text that stands in the wrong list ends the script. The tests need neither.
Usage: tools/make_grammar_cases.py > tests/fixtures/grammar/schemas.json
"""
import json
import sys

from jsonschema import Draft202012Validator, FormatChecker

STR, INT, NUM, BOOL = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def obj(properties, required=(), **more):
    return {"type": "object", "properties": properties, "required": list(required), **more}


NODE = {"$ref": "#/$defs/node"}
# name: (schema, texts that fulfil it, texts that do not)
CASES = {
    "empty": ({}, ['1', '"a"', '[1, {"b": null}]', '{}', '-0.5e3'], []),
    "any_object": ({"type": "object"}, ['{}', '{"a": [1, 2], "b": {"c": "d"}}'], ['1', '[]', '"x"']),
    "flat_closed": (obj({"name": STR, "age": INT}, ["name"], additionalProperties=False),
                    ['{"name": "Ann"}', '{"age": 3, "name": ""}', '{"name":"é\\n\\u00e9","age":-12}'],
                    ['{}', '{"age": 1}', '{"name": 1}', '{"name": "a", "x": 1}', '{"name": "a", "age": 1.5}']),
    "nested": (obj({"user": obj({"id": INT, "address": obj({"city": STR, "zip": STR}, ["city"])}, ["id", "address"])}, ["user"]),
               ['{"user": {"id": 1, "address": {"city": "Oslo"}}}', '{"user":{"address":{"zip":"1","city":"b"},"id":0}}'],
               ['{"user": {"id": 1}}', '{"user": {"id": "1", "address": {"city": "a"}}}', '{}']),
    "additional_true": (obj({"kind": STR}, ["kind"], additionalProperties=True),
                        ['{"kind": "a"}', '{"zz": [1], "kind": "a", "kin": 2, "kinds": null}'],
                        ['{}', '{"kind": 1}', '{"zz": 1}', '{"zz": 1, "kind": 4}']),
    "additional_schema": ({"type": "object", "additionalProperties": INT},
                          ['{}', '{"a": 1, "b\\"c": -2}'], ['{"a": "1"}', '{"a": 1, "b": null}']),
    "enum_strings": (obj({"unit": {"type": "string", "enum": ["celsius", "fahrenheit", "c"]}}, ["unit"]),
                     ['{"unit": "c"}', '{"unit": "celsius"}'], ['{"unit": "cel"}', '{"unit": null}', '{"unit": "kelvin"}']),
    "enum_mixed": ({"enum": ["a", 1, None, True, [1, 2], {"k": "v"}]},
                   ['"a"', '1', 'null', 'true', '[1,2]', '{"k":"v"}'], ['"b"', '2', 'false', '[1]', '{"k": "w"}', '{}']),
    "const": (obj({"version": {"const": 2}, "tag": {"const": "x\"y\\z\n"}}, ["version", "tag"]),
              ['{"version": 2, "tag": "x\\"y\\\\z\\n"}'], ['{"version": 3, "tag": "x"}', '{"version": 2}']),
    "any_of": ({"anyOf": [STR, {"type": "array", "items": INT}, obj({"a": BOOL}, ["a"])]},
               ['"s"', '[]', '[1, 2]', '{"a": true}'], ['1', '["s"]', '{}', '{"a": 1}', 'null']),
    "one_of_kinds": ({"oneOf": [obj({"kind": {"const": "circle"}, "r": NUM}, ["kind", "r"], additionalProperties=False),
                                obj({"kind": {"const": "square"}, "side": NUM}, ["kind", "side"], additionalProperties=False)]},
                     ['{"kind": "circle", "r": 1.5}', '{"side": 2, "kind": "square"}'],
                     ['{"kind": "circle", "side": 1}', '{"kind": "line"}', '{"r": 1}', '{}']),
    "array_counts": ({"type": "array", "items": STR, "minItems": 2, "maxItems": 4},
                     ['["a", "b"]', '["a","b","c","d"]'], ['[]', '["a"]', '["a", "b", "c", "d", "e"]', '["a", 1]']),
    "tuple": ({"type": "array", "prefixItems": [STR, INT], "items": BOOL, "minItems": 1},
              ['["a"]', '["a", 1]', '["a", 1, true, false]'], ['[]', '[1]', '["a", "b"]', '["a", 1, 2]']),
    "string_lengths": ({"type": "string", "minLength": 2, "maxLength": 5},
                       ['"ab"', '"abcde"', '"éééé"', '"\\n\\t"', '"\U0001F600\U0001F600"', '"\\ud83d\\ude00a"'],
                       ['""', '"a"', '"abcdef"', '"\U0001F600"', '"\\ud83d\\ude00"', '1']),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{2,3}-[0-9]+(\\.[0-9])?$"},
                ['"AB-1"', '"ABC-123.4"'], ['"A-1"', '"ABCD-1"', '"AB-"', '"AB-1."', '"xAB-1"']),
    "pattern_open": ({"type": "string", "pattern": "b+c|^x"}, ['"abbcd"', '"bc"', '"xyz"'], ['"ac"', '"bbb"', '"yx"', '""']),
    "pattern_lengths": ({"type": "string", "pattern": "^[a-z]*[0-9]$", "minLength": 3, "maxLength": 4},
                        ['"ab1"', '"abc1"'], ['"a1"', '"abcd1"', '"abcd"', '"ab"']),
    "integer_range": ({"type": "integer", "minimum": 7, "maximum": 1203},
                      ['7', '9', '10', '99', '1000', '1203'], ['6', '1204', '0', '-7', '12030', '7.5', '"7"']),
    "integer_exclusive": ({"type": "integer", "exclusiveMinimum": -15, "exclusiveMaximum": 3},
                          ['-14', '-9', '0', '2'], ['-15', '-16', '3', '10', '-140']),
    "number_range": ({"type": "number", "minimum": -0.25, "exclusiveMaximum": 1.5},
                     ['0', '-0.25', '-0.2', '1.49', '1', '0.000', '1.4999'], ['-0.26', '1.5', '1.50', '2', '-1', '10']),
    "probability": (obj({"p": {"type": "number", "minimum": 0, "maximum": 1}}, ["p"]),
                    ['{"p": 0}', '{"p": 1.0}', '{"p": 0.333}'], ['{"p": -0.1}', '{"p": 1.01}', '{"p": 2}', '{"p": "1"}']),
    "multiple_of": ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100},
                    ['7', '14', '98'], ['0', '8', '105', '-7']),
    "defs": ({"$defs": {"point": obj({"x": NUM, "y": NUM}, ["x", "y"], additionalProperties=False)}, "type": "object",
              "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}, "required": ["from", "to"]},
             ['{"from": {"x": 1, "y": 2.5}, "to": {"y": -1, "x": 0}}'], ['{"from": {"x": 1}, "to": {"x": 1, "y": 1}}', '{}']),
    "recursive_tree": ({"$defs": {"node": obj({"value": INT, "children": {"type": "array", "items": NODE}}, ["value"],
                                              additionalProperties=False)}, **NODE},
                       ['{"value": 1}', '{"value": 1, "children": [{"value": 2, "children": []}, {"value": 3}]}'],
                       ['{"children": []}', '{"value": 1, "children": [{}]}', '{"value": 1, "children": [{"value": "x"}]}']),
    "recursive_list": ({"$ref": "#/$defs/node", "$defs": {"node": obj(
        {"v": BOOL, "next": {"anyOf": [NODE, {"type": "null"}]}}, ["v", "next"])}},
                       ['{"v": true, "next": null}', '{"next": {"next": null, "v": false}, "v": true}'],
                       ['{"v": true}', '{"v": true, "next": {}}', 'null']),
    "recursive_root": (obj({"left": {"$ref": "#"}, "right": {"$ref": "#"}, "leaf": STR}, additionalProperties=False),
                       ['{}', '{"left": {"leaf": "a"}, "right": {"left": {}}}'], ['{"left": 1}', '{"up": {}}']),
    "nullable": (obj({"a": {"type": ["string", "null"]}, "b": {"type": ["integer", "null"], "minimum": 0}}, ["a", "b"]),
                 ['{"a": null, "b": null}', '{"b": 4, "a": "x"}'], ['{"a": 1, "b": 2}', '{"a": null, "b": -1}', '{"a": null}']),
    "unicode_keys": (obj({"名前": STR, "größe": NUM, "a\"b\\c": BOOL, "\U0001F600": {"type": "null"}}, ["名前", "\U0001F600"],
                         additionalProperties=False),
                     ['{"名前": "京", "\U0001F600": null}', '{"\U0001F600":null,"größe":1,"a\\"b\\\\c":true,"名前":""}'],
                     ['{"名前": "a"}', '{"\U0001F600": null}', '{"名前": "a", "\U0001F600": null, "grosse": 1}']),
    "all_of": ({"allOf": [obj({"a": INT}, ["a"]), obj({"b": STR, "a": {"minimum": 5}}, ["b"])]},
               ['{"a": 5, "b": ""}', '{"b": "x", "a": 17}'], ['{"a": 4, "b": ""}', '{"a": 5}', '{"b": ""}']),
    "one_or_other": (obj({"email": STR, "phone": STR}, anyOf=[{"required": ["email"]}, {"required": ["phone"]}]),
                     ['{"email": "a"}', '{"phone": "1"}', '{"phone": "1", "email": "a"}'], ['{}', '{"email": 1}']),
    "formats": (obj({"day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"},
                     "ip": {"type": "string", "format": "ipv4"}}, ["day"]),
                ['{"day": "2024-02-29"}', '{"day": "1999-12-31", "id": "123e4567-e89b-12d3-a456-426614174000", "ip": "10.0.255.1"}'],
                ['{"day": "2023-02-29"}', '{"day": "2024-13-01"}', '{"day": "2024-1-1"}', '{"day": "2024-01-01", "ip": "10.0.256.1"}']),
    "boolean": (BOOL, ['true', 'false'], ['null', '"true"', '1']),
    "optional_only": (obj({k: INT for k in "abcdefgh"}, additionalProperties=False),
                      ['{}', '{"h": 1, "a": 2}', '{"a": 1, "b": 2, "c": 3}'], ['{"i": 1}', '{"a": "x"}']),
    "ref_siblings": ({"$defs": {"n": {"type": "integer", "minimum": 1}}, "type": "object",
                      "properties": {"q": {"$ref": "#/$defs/n", "maximum": 9, "description": "a digit"}}, "required": ["q"]},
                     ['{"q": 1}', '{"q": 9}'], ['{"q": 0}', '{"q": 10}']),
    "items_of_kinds": ({"type": "array", "maxItems": 3, "items": {"anyOf": [obj({"t": {"const": "n"}, "v": NUM}, ["t", "v"]),
                                                                          obj({"t": {"const": "s"}, "v": STR}, ["t", "v"])]}},
                       ['[]', '[{"t": "n", "v": 1}, {"v": "x", "t": "s"}]'], ['[{"t": "n", "v": "x"}]', '[{"t": "q"}]', '[{}]']),
    "required_elsewhere": ({"type": "object", "required": ["id"], "additionalProperties": {"type": ["integer", "string"]}},
                           ['{"id": 1}', '{"x": "y", "id": "z"}'], ['{}', '{"x": 1}', '{"id": null}']),
    "deep": (obj({"a": obj({"b": {"type": "array", "minItems": 1, "items": obj(
        {"c": {"type": "array", "minItems": 2, "maxItems": 2, "items": obj({"d": {"enum": ["x", "y"]}}, ["d"])}}, ["c"])}}, ["b"])}, ["a"]),
             ['{"a": {"b": [{"c": [{"d": "x"}, {"d": "y"}]}]}}'], ['{"a": {"b": []}}', '{"a": {"b": [{"c": [{"d": "x"}]}]}}']),
}


def main():
    out = []
    for name, (schema, good, bad) in CASES.items():
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema, format_checker=FormatChecker())
        for text in good + bad:
            if validator.is_valid(json.loads(text)) != (text in good):
                sys.exit(f"{name}: {text} stands in the wrong list")
        out.append({"name": name, "schema": schema, "valid": good, "invalid": bad})
    print(json.dumps(out, ensure_ascii=False, indent=1))


main()
