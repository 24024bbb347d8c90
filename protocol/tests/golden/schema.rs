//! Checks values with the committed schema. This code knows only the keywords of JSON Schema that this schema uses, and panics at
//! others. A complete validator would take too long to compile.

use std::collections::BTreeSet;

use serde_json::Value;

pub fn committed_schema() -> Value {
    serde_json::from_str(protocol::SCHEMA).unwrap()
}

/// Checks `value` as the type `root`. `Err` names the invalid part of `value` and the keyword.
pub fn check(schema: &Value, root: &str, value: &Value) -> Result<(), String> {
    check_at(schema, &schema["$defs"][root], value, "")
}

fn check_at(document: &Value, rule: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(keywords) = rule.as_object() else {
        return if rule == &Value::Bool(true) { Ok(()) } else { Err(format!("`{at}`: no value is allowed")) };
    };
    for (keyword, expected) in keywords {
        let is_valid = match keyword.as_str() {
            "description" | "default" | "title" | "format" => true,
            "$ref" => {
                check_at(document, resolve(document, expected), value, at)?;
                true
            }
            "type" => one_or_many(expected).any(|name| is_of_type(value, name)),
            "const" => value == expected,
            "enum" => expected.as_array().is_some_and(|allowed| allowed.contains(value)),
            "minItems" => value.as_array().is_none_or(|items| Some(items.len() as u64) >= expected.as_u64()),
            "minLength" => {
                value.as_str().is_none_or(|text| Some(text.chars().count() as u64) >= expected.as_u64())
            }
            "exclusiveMinimum" => value.as_f64().is_none_or(|number| Some(number) > expected.as_f64()),
            "minimum" => value.as_f64().is_none_or(|number| Some(number) >= expected.as_f64()),
            "maximum" => value.as_f64().is_none_or(|number| Some(number) <= expected.as_f64()),
            "required" => one_or_many(expected).all(|name| value.get(name.as_str().unwrap()).is_some()),
            "properties" => {
                for (name, rule) in expected.as_object().unwrap() {
                    if let Some(field) = value.get(name) {
                        check_at(document, rule, field, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    check_at(document, expected, field, &format!("{at}.{name}"))?;
                }
                // A rule with `properties` and `additionalProperties` is not supported, and fails.
                rule.get("properties").is_none()
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check_at(document, expected, item, &format!("{at}[{index}]"))?;
                }
                true
            }
            "anyOf" => one_or_many(expected).any(|rule| check_at(document, rule, value, at).is_ok()),
            "oneOf" => {
                one_or_many(expected).filter(|rule| check_at(document, rule, value, at).is_ok()).count() == 1
            }
            unknown => panic!("`{at}`: the schema uses `{unknown}`, which this test does not know"),
        };
        if !is_valid {
            return Err(format!("`{at}`: `{keyword}`: {expected} does not hold for {value}"));
        }
    }
    Ok(())
}

fn resolve<'a>(document: &'a Value, reference: &Value) -> &'a Value {
    let pointer =
        reference.as_str().and_then(|text| text.strip_prefix('#')).expect("a reference within the schema");
    document.pointer(pointer).unwrap_or_else(|| panic!("`{pointer}` is not in the schema"))
}

fn one_or_many(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice).iter()
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        unknown => panic!("unknown type `{unknown}`"),
    }
}

/// Every field that the schema declares, as `Type.field`, without the tag `type`.
pub fn declared_fields(schema: &Value) -> BTreeSet<String> {
    let types = schema["$defs"].as_object().unwrap();
    let fields = |(name, rule): (&String, &Value)| {
        let names =
            rule["properties"].as_object().into_iter().flatten().map(|(field, _)| format!("{name}.{field}"));
        names.collect::<Vec<_>>()
    };
    types.iter().flat_map(fields).collect()
}

/// Adds the fields of `value`, which has the type `root`, to `present`.
pub fn add_fields(schema: &Value, root: &str, value: &Value, present: &mut BTreeSet<String>) {
    let rule = &schema["$defs"][root];
    add_fields_at(schema, rule, root, value, present);
}

fn add_fields_at(document: &Value, rule: &Value, name: &str, value: &Value, present: &mut BTreeSet<String>) {
    if value.is_null() || check_at(document, rule, value, "").is_err() {
        return;
    }
    if let Some(reference) = rule.get("$ref") {
        let name = reference.as_str().unwrap().rsplit('/').next().unwrap();
        add_fields_at(document, resolve(document, reference), name, value, present);
    }
    for (field, rule) in rule["properties"].as_object().into_iter().flatten() {
        if let Some(inner) = value.get(field) {
            present.insert(format!("{name}.{field}"));
            add_fields_at(document, rule, name, inner, present);
        }
    }
    for item in value.as_array().into_iter().flatten().filter(|_| rule.get("items").is_some()) {
        add_fields_at(document, &rule["items"], name, item, present);
    }
    for rule in ["oneOf", "anyOf"].iter().filter_map(|keyword| rule.get(keyword)).flat_map(one_or_many) {
        add_fields_at(document, rule, name, value, present);
    }
}

/// The allowed words of the enum `name`. The schema has those with a description under `oneOf`, others under `enum`.
pub fn words<'a>(schema: &'a Value, name: &str) -> Vec<&'a str> {
    let rule = &schema["$defs"][name];
    let constants = one_or_many(&rule["oneOf"]).filter_map(|rule| rule["const"].as_str());
    let listed =
        [rule].into_iter().chain(one_or_many(&rule["oneOf"])).flat_map(|rule| one_or_many(&rule["enum"]));
    constants.chain(listed.filter_map(Value::as_str)).collect()
}
