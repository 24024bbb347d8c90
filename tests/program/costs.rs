//! The cost of generated tokens, and what a configuration saves over another one.

use serde_json::Value;

use crate::support::{DECODE, Scratch, finish};

/// At this price of an hour, a second costs 0.001.
const PRICE: [&str; 2] = ["--price-per-hour", "3.6"];

#[test]
fn every_format_has_the_cost_of_a_million_tokens_and_what_an_engine_saves_over_another() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    for (name, settings) in [("slow", "--per-token-ns 4000000"), ("quick", "--per-token-ns 1000000")] {
        command.arg("-e").arg(scratch.engine(name, settings));
    }
    command.env_remove("ORCHESTRATE_VERIFIER").arg("--verifier").arg(scratch.engine("verifier", ""));
    command.args(DECODE).args(["--blocks", "1", "--iterations", "2", "--warmup", "0"]).args(PRICE);
    let json = scratch.join("report.json");
    command.arg("--json").arg(&json).arg("--results").arg(scratch.results());
    let text = finish(&mut command).exits_with(0).stdout;
    let cheaper = text.lines().find(|line| line.ends_with("x cheaper")).unwrap_or_else(|| panic!("{text}"));
    // The throughput, the cost, the saved money and the ratio.
    assert!(cheaper.contains(" quick ") && cheaper.split_whitespace().count() == 6, "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(report["price_per_hour"], 3.6);
    let [slow, quick] = &report["costs"].as_array().unwrap()[..] else { panic!("{report}") };
    for cost in [slow, quick] {
        let number = |name: &str| cost[name].as_f64().unwrap();
        // The tokens of 1,000 seconds cost 1.
        let expected = 1000.0 / number("tokens_per_second");
        assert!((number("million_tokens") / expected - 1.0).abs() < 1e-9, "{cost}");
    }
    let [returned] = &quick["returns"].as_array().unwrap()[..] else { panic!("{quick}") };
    let million = |cost: &Value| cost["million_tokens"].as_f64().unwrap();
    let number = |name: &str| returned[name].as_f64().unwrap();
    assert_eq!(returned["against"], "slow");
    assert!((number("saved") - (million(slow) - million(quick))).abs() < 1e-9, "{returned}");
    assert!((number("times_cheaper") - million(slow) / million(quick)).abs() < 1e-9, "{returned}");
    let show = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command.arg("report").args(options).arg("--results").arg(scratch.results());
        finish(&mut command).exits_with(0).stdout
    };
    let csv = show(&[&PRICE[..], &["--format", "csv"]].concat());
    let line = |metric: &str| csv.lines().find(|line| line.contains(",quick,") && line.contains(metric));
    assert!(
        line(",cost.million_tokens,price,2,").is_some() && line(",cost.saved,price,2,").is_some(),
        "{csv}"
    );
    assert!(line(",cost.saved,").unwrap().contains(",slow,"), "{csv}");
    // Without a price, no format has a cost.
    assert!(!show(&["--format", "csv"]).contains(",cost."));
    let pairs = show(&[&PRICE[..], &["--pairs"]].concat());
    assert!(pairs.contains("- `quick` saves ") && pairs.contains(" over `slow` (decode, "), "{pairs}");
    assert!(!pairs.contains("- `slow` saves "), "{pairs}");
}
