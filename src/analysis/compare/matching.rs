//! Matches the configurations of two records, and names the factors (settings, version, dtype of the weights) that differ.

use crate::plan::{Configuration, Plan};
use crate::record::RunRecord;
use crate::text;

/// Configurations of two records, by their indices in the plans; the base is first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matching {
    pub pairs: Vec<(usize, usize)>,
    pub only_base: Vec<usize>,
    pub only_new: Vec<usize>,
}

/// Matches configurations by label, then the remaining ones by their settings (engine and preset included) and model. If nothing
/// matches and each record has a single configuration, these two are a pair.
pub fn matching(base: &Plan, new: &Plan) -> Matching {
    let (base_rows, mut new_rows): (Vec<usize>, Vec<usize>) =
        (base.row_indices().collect(), new.row_indices().collect());
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let criteria: [fn(&Configuration, &Configuration) -> bool; 2] =
        [|a, b| a.label == b.label, has_same_settings];
    for is_match in criteria {
        for &row in &base_rows {
            let is_matched = pairs.iter().any(|(base, _)| *base == row);
            let position =
                new_rows.iter().position(|&it| is_match(&base.configurations[row], &new.configurations[it]));
            if let Some(position) = position.filter(|_| !is_matched) {
                pairs.push((row, new_rows.remove(position)));
            }
        }
    }
    if let ([base_row], [new_row], true) = (base_rows.as_slice(), new_rows.as_slice(), pairs.is_empty()) {
        (pairs, new_rows) = (vec![(*base_row, *new_row)], Vec::new());
    }
    pairs.sort_by_key(|(_, new)| *new);
    let only_base = base_rows.into_iter().filter(|row| pairs.iter().all(|(base, _)| base != row)).collect();
    Matching { pairs, only_base, only_new: new_rows }
}

/// Whether two configurations have the same settings, reported version and dtype of the weights. A difference between them then
/// counts as a change of the machine.
pub fn is_same_program(base: (&RunRecord, usize), new: (&RunRecord, usize)) -> bool {
    settings_in_effect(base.0, base.1) == settings_in_effect(new.0, new.1)
}

/// The settings that differ, with both values: `` threads `8`, was `2` ``.
pub fn differing_settings(base: (&RunRecord, usize), new: (&RunRecord, usize)) -> Vec<String> {
    let pairs = settings_in_effect(base.0, base.1).into_iter().zip(settings_in_effect(new.0, new.1));
    let differing = pairs.filter(|(base, new)| base != new);
    differing.map(|((setting, base), (_, new))| format!("{setting} `{new}`, was `{base}`")).collect()
}

fn has_same_settings(a: &Configuration, b: &Configuration) -> bool {
    let model = |it: &Configuration| it.model.identity.clone().unwrap_or_else(|| it.model.name.clone());
    settings(a) == settings(b) && model(a) == model(b)
}

fn settings(row: &Configuration) -> Vec<(&'static str, String)> {
    let or_default = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".into());
    let options: Vec<String> = row.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let none = || "none".to_string();
    vec![
        ("engine", row.engine.clone()),
        ("preset", or_default(&row.preset)),
        ("device", row.device.to_string()),
        ("dtype", or_default(&row.dtype)),
        ("threads", row.threads.to_string()),
        ("options", Some(options.join(" ")).filter(|text| !text.is_empty()).unwrap_or_else(none)),
    ]
}

/// The requested settings, with the version and the dtype of the weights that the engine reported.
fn settings_in_effect(record: &RunRecord, configuration: usize) -> Vec<(&'static str, String)> {
    let mut found = settings(&record.header.plan.configurations[configuration]);
    let launches = || record.launches_of(configuration);
    let unknown = || "unknown".to_string();
    let version = launches().find_map(|launch| Some(launch.hello.as_ref()?.version.clone()));
    found.insert(1, ("version", version.unwrap_or_else(unknown)));
    let dtype = launches().find_map(|launch| launch.loaded.as_ref()?.facts.weights_dtype.clone());
    found.push(("dtype of the weights", dtype.unwrap_or_else(unknown)));
    found.into_iter().map(|(name, value)| (name, text::line(&value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Selection;
    use crate::record::specimen::planned;
    use crate::record::specimen::timed::selection;

    fn plan(engines: &[&str]) -> Plan {
        planned(&selection(engines, &["decode"])).header.plan
    }

    #[test]
    fn rows_are_matched_by_label_and_the_others_are_listed() {
        let found = matching(&plan(&["a", "b", "c"]), &plan(&["d", "c", "a"]));
        assert_eq!(found, Matching { pairs: vec![(2, 1), (0, 2)], only_base: vec![1], only_new: vec![0] });
    }

    #[test]
    fn single_rows_with_different_labels_are_compared() {
        assert_eq!(matching(&plan(&["a"]), &plan(&["b"])).pairs, [(0, 0)]);
        assert!(matching(&plan(&["a"]), &plan(&["b", "c"])).pairs.is_empty());
    }

    #[test]
    fn rows_with_equal_settings_match_although_one_label_is_longer() {
        let several = Selection { threads: vec![1, 2], ..selection(&["a", "b"], &["decode"]) };
        let several = planned(&several).header.plan;
        assert_eq!(several.configurations[2].label, "a 2 threads");
        assert_eq!(matching(&plan(&["a", "b"]), &several).pairs, [(0, 2), (1, 3)]);
    }

    #[test]
    fn differing_settings_are_listed_with_both_values() {
        let base = planned(&selection(&["a"], &["decode"]));
        let mut new = base.clone();
        new.header.plan.configurations[0].threads = 8;
        new.header.plan.configurations[0].dtype = Some("bf16\u{1b}[31m".into());
        let found = differing_settings((&base, 0), (&new, 0));
        assert_eq!(found, ["dtype `bf16`, was `default`", "threads `8`, was `2`"]);
        assert!(is_same_program((&base, 0), (&base, 0)) && !is_same_program((&base, 0), (&new, 0)));
    }
}
