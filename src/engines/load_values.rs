//! The values that an engine's `load` accepts: from its manifest, or from the `hello` of a program without a manifest.

use std::collections::BTreeMap;
use std::fmt;

use protocol::{Capabilities, PLANTED_DELAY_OPTION};
use serde::Deserialize;
use serde_json::Value;

use crate::machine::Device;
use crate::text::either;

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadValues {
    /// Devices or families of devices: `cuda` stands for `cuda:1` too. Empty: unknown.
    pub devices: Vec<String>,
    /// Empty: unknown.
    pub dtypes: Vec<String>,
    /// The options by their names. `None`: unknown.
    pub options: Option<BTreeMap<String, OptionValues>>,
    /// One of these options must be given. Empty: none has to be.
    pub needs_one_of: Vec<String>,
}

/// The values of a load option. A bool or a number may also be given as a text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptionValues {
    /// The engine decides.
    Any,
    Bool,
    /// The address of a server.
    Url,
    #[serde(untagged)]
    OneOf(Vec<String>),
    #[serde(untagged)]
    Integer(IntegerRange),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntegerRange {
    pub min: u64,
    pub max: Option<u64>,
}

/// A value of the command line that an engine might refuse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadValue<'a> {
    Device(&'a Device),
    Dtype(&'a str),
    /// The name of a load option.
    Option(&'a str),
    /// A load option with its value.
    OptionValue(&'a str, &'a Value),
}

impl LoadValues {
    /// The values of a program that supports only `generate`: it has no load options.
    pub fn of_minimal_engine() -> Self {
        Self { options: Some(BTreeMap::new()), ..Self::default() }
    }

    /// Whether a load may have this value. True if the accepted values are unknown.
    pub fn accepts(&self, value: LoadValue) -> bool {
        let is_listed = |name: &str| self.listed(value).is_none_or(|listed| listed.contains(&name));
        match value {
            LoadValue::Device(device) => self.listed(value).is_none_or(|listed| {
                listed.iter().any(|name| Device::from(*name).family() == device.family())
            }),
            // No engine lists this option, because the kits handle it.
            LoadValue::Option(PLANTED_DELAY_OPTION) | LoadValue::OptionValue(PLANTED_DELAY_OPTION, _) => true,
            LoadValue::Dtype(name) | LoadValue::Option(name) => is_listed(name),
            LoadValue::OptionValue(name, value) => match &self.options {
                None => true,
                Some(options) => options.get(name).is_some_and(|values| values.accepts(value)),
            },
        }
    }

    /// All accepted names of the kind of `value`. `None` if they are unknown, or if the values are not listed one by one.
    pub fn listed(&self, value: LoadValue) -> Option<Vec<&str>> {
        let names = match value {
            LoadValue::Device(_) => &self.devices,
            LoadValue::Dtype(_) => &self.dtypes,
            LoadValue::Option(_) => return Some(self.options.as_ref()?.keys().map(String::as_str).collect()),
            LoadValue::OptionValue(..) => return None,
        };
        (!names.is_empty()).then(|| names.iter().map(String::as_str).collect())
    }

    /// The values of a load option, if the engine has the option and restricts its values.
    pub fn option(&self, name: &str) -> Option<&OptionValues> {
        self.options.as_ref()?.get(name).filter(|values| **values != OptionValues::Any)
    }
}

impl OptionValues {
    fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Bool => value.is_boolean() || matches!(value.as_str(), Some("true" | "false")),
            Self::Url => {
                let host = value.as_str().and_then(|url| url.strip_prefix("http://"));
                host.is_some_and(|host| !host.is_empty())
            }
            Self::OneOf(values) => value.as_str().is_some_and(|value| values.iter().any(|it| it == value)),
            Self::Integer(IntegerRange { min, max }) => {
                let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
                number.is_some_and(|number| number >= *min && max.is_none_or(|max| number <= max))
            }
        }
    }
}

impl fmt::Display for OptionValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any value"),
            Self::Bool => f.write_str("`true` or `false`"),
            Self::Url => f.write_str("an address such as `http://127.0.0.1:8000`"),
            Self::OneOf(values) => f.write_str(&either(values)),
            Self::Integer(IntegerRange { min, max: Some(max) }) => {
                write!(f, "a whole number from {min} to {max}")
            }
            Self::Integer(IntegerRange { min, max: None }) => write!(f, "a whole number of at least {min}"),
        }
    }
}

impl From<&Capabilities> for LoadValues {
    fn from(capabilities: &Capabilities) -> Self {
        let Capabilities { devices, dtypes, options, .. } = capabilities.clone();
        // The protocol has only the names of the options, so any value counts as accepted.
        let options = options.map(|names| names.into_iter().map(|name| (name, OptionValues::Any)).collect());
        Self { devices, dtypes, options, needs_one_of: Vec::new() }
    }
}

impl fmt::Display for LoadValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => write!(f, "device `{device}`"),
            Self::Dtype(dtype) => write!(f, "dtype `{dtype}`"),
            Self::Option(name) => write!(f, "load option `{name}`"),
            Self::OptionValue(name, value) => {
                let value = value.as_str().map_or_else(|| value.to_string(), String::from);
                write!(f, "value `{}` of the load option `{name}`", crate::text::line(&value))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_accepts_its_listed_values_and_any_value_of_an_unlisted_setting() {
        let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let cpu = LoadValues {
            devices: list(&["cpu"]),
            dtypes: list(&["f32"]),
            options: Some([("pin".into(), OptionValues::Bool)].into()),
            ..LoadValues::default()
        };
        let gpus = LoadValues { devices: list(&["cuda:0", "cpu"]), ..LoadValues::default() };
        let accepts_device =
            |values: &LoadValues, name: &str| values.accepts(LoadValue::Device(&name.into()));
        assert!(
            accepts_device(&cpu, "cpu") && accepts_device(&cpu, "CPU:0") && !accepts_device(&cpu, "cuda")
        );
        // The engine itself knows the number of its GPUs.
        assert!(accepts_device(&gpus, "cuda:1") && !accepts_device(&gpus, "cdua"));
        assert!(cpu.accepts(LoadValue::Dtype("f32")) && !cpu.accepts(LoadValue::Dtype("F32")));
        assert!(cpu.accepts(LoadValue::Option(PLANTED_DELAY_OPTION)));
        assert!(cpu.accepts(LoadValue::Option("pin")) && !cpu.accepts(LoadValue::Option("pim")));
        let unknown = LoadValues::default();
        assert!(accepts_device(&unknown, "metal") && unknown.accepts(LoadValue::Option("x")));
        assert!(!LoadValues::of_minimal_engine().accepts(LoadValue::Option("x")));
    }

    #[test]
    fn an_option_accepts_its_values_also_as_texts() {
        let values: LoadValues = toml::from_str(
            "[options]\npin = \"bool\"\npath = [\"fast\", \"exact\"]\nlookup = { min = 0, max = 7 }\n\
             size = { min = 16 }\nfolder = \"any\"\nurl = \"url\"\n",
        )
        .unwrap();
        let accepts = |name, value: Value| values.accepts(LoadValue::OptionValue(name, &value));
        for (name, accepted, refused) in [
            ("pin", vec![true.into(), "false".into()], vec!["3".into(), "True".into(), 1.into()]),
            ("path", vec!["fast".into()], vec!["fsat".into(), true.into()]),
            ("lookup", vec!["7".into(), 0.into()], vec!["8".into(), "-1".into(), "".into(), 1.5.into()]),
            ("size", vec!["16".into()], vec!["15".into()]),
            ("folder", vec!["".into(), 3.into()], vec![]),
            ("url", vec!["http://a:1".into()], vec!["foo".into(), "https://a".into(), "http://".into()]),
        ] {
            assert!(accepted.into_iter().all(|value| accepts(name, value)), "{name}");
            assert!(!refused.into_iter().any(|value| accepts(name, value)), "{name}");
        }
        assert!(!accepts("pim", "1".into()) && accepts(PLANTED_DELAY_OPTION, "1".into()));
        let stated = ["pin", "path", "lookup", "size"].map(|name| values.option(name).unwrap().to_string());
        assert_eq!(
            stated.join("; "),
            "`true` or `false`; `fast` or `exact`; a whole number from 0 to 7; a whole number of at least 16"
        );
        assert_eq!(values.option("folder"), None);
        for unknown in ["pin = \"boolean\"", "pin = { from = 3 }", "pin = 3"] {
            assert!(toml::from_str::<LoadValues>(&format!("[options]\n{unknown}")).is_err(), "{unknown}");
        }
    }
}
