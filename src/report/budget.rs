//! The budget that a report proposes. Each failure, warning and output check of a record names the budget that it needs itself.
//! The largest one is enough for all, so every text of the report names this one.

use std::time::Duration;

/// The texts before a budget that is proposed. A budget that the run had stands after another text.
const BEFORE: [&str; 2] = ["hint: --budget ", "hint: `--budget "];
/// A recorded hint is the option alone, or lines of options that begin with it. A sentence about the run's own budget begins with
/// the option too.
const OPTION: &str = "--budget ";

/// Replaces each proposed budget by the largest one, and returns it. `budgets` are proposed themselves; `texts` may propose some.
pub fn propose_one(mut texts: Vec<&mut String>, budgets: Vec<&mut String>) -> Option<String> {
    let of_texts = texts.iter().flat_map(|text| proposals(text)).map(|(_, budget)| budget);
    let all = of_texts.chain(budgets.iter().map(|budget| budget.as_str()));
    let (_, largest) = all.filter_map(|it| Some((duration(it)?, it.to_string()))).max()?;
    for text in &mut texts {
        **text = with_budget(text, &largest);
    }
    for budget in budgets {
        budget.clone_from(&largest);
    }
    Some(largest)
}

/// The budgets that a text proposes, each with its position.
fn proposals(text: &str) -> Vec<(usize, &str)> {
    let of_hint = |before: &'static str| text.match_indices(before).map(|(at, before)| at + before.len());
    let mut starts: Vec<usize> = BEFORE.into_iter().flat_map(of_hint).collect();
    let first_line = text.lines().next().unwrap_or_default();
    let is_hint = first_line.strip_prefix(OPTION).is_some_and(|value| !value.contains(' '));
    starts.extend(is_hint.then_some(OPTION.len()));
    starts.sort_unstable();
    let budget = |start: usize| text[start..].split(|it: char| !it.is_ascii_alphanumeric()).next();
    starts.into_iter().filter_map(|start| Some((start, budget(start)?))).collect()
}

fn duration(budget: &str) -> Option<Duration> {
    humantime::parse_duration(budget).ok()
}

fn with_budget(text: &str, budget: &str) -> String {
    let mut replaced = text.to_string();
    for (start, old) in proposals(text).into_iter().rev().filter(|(_, old)| duration(old).is_some()) {
        replaced.replace_range(start..start + old.len(), budget);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_proposes_the_largest_budget_and_the_budget_of_the_run_stays() {
        let fact = "no time: `--budget 3s` ended before this case was measured";
        let too_short = "--budget 1s is too short: about 3 of 5 blocks fit; hint: --budget 4s";
        let mut texts = [
            "fewer blocks; hint: `--budget 14m`",
            "(hint: --budget 90s)",
            "--budget 4s\n--iterations N",
            fact,
            too_short,
        ]
        .map(String::from);
        let mut needed = "2m".to_string();
        let proposed = propose_one(texts.iter_mut().collect(), vec![&mut needed]);
        assert_eq!((proposed.as_deref(), needed.as_str()), (Some("14m"), "14m"));
        let expected = [
            "fewer blocks; hint: `--budget 14m`",
            "(hint: --budget 14m)",
            "--budget 14m\n--iterations N",
            fact,
            "--budget 1s is too short: about 3 of 5 blocks fit; hint: --budget 14m",
        ];
        assert_eq!(texts, expected);
    }
}
