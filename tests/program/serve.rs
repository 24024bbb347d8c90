//! The scenarios `serve` and `offline`: requests that overlap.

use serde_json::Value;

use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Scratch, finish, without_line_breaks};

/// One block of one round, without warm-up.
const SHORT: &[&str] = &["--blocks", "1", "--iterations", "1", "--warmup", "0", "--json", "-"];
/// An engine that takes four requests at once, with tokens that take longer than the noise of a machine.
const FOUR_AT_ONCE: &str =
    r#"--capabilities '{"concurrency":4}' --first-token-ns 20000000 --per-token-ns 5000000"#;
/// The same, with one request at a time.
const ONE_AT_ONCE: &str = "--first-token-ns 20000000 --per-token-ns 5000000";

fn serve(engines: &[(&str, &str)], verifier: Verifier, options: &[&str]) -> Run {
    let scenario = ["-s", "serve", "--prompt-tokens", "16", "--new-tokens", "4"];
    run_selected(engines, verifier, &[&scenario, SHORT, options].concat())
}

/// The times of the requests of an engine's windows, in nanoseconds: wanted, sent, answered.
fn windows(run: &Run, label: &str) -> Vec<Vec<[u64; 3]>> {
    let times =
        |request: &Value| ["wanted_ns", "sent_ns", "answered_ns"].map(|it| request[it].as_u64().unwrap());
    let samples = run.record.samples_of(label).into_iter();
    samples.map(|it| it["requests"].as_array().unwrap().iter().map(times).collect()).collect()
}

/// The most requests that are open at once in a window.
fn most_open(window: &[[u64; 3]]) -> usize {
    let open_at = |ns| window.iter().filter(|[_, sent, answered]| (*sent..*answered).contains(&ns)).count();
    window.iter().map(|[_, sent, _]| open_at(*sent)).max().unwrap_or(0)
}

fn estimate(case: &Value, metric: &str) -> Option<f64> {
    let metrics = case["metrics"].as_array().unwrap();
    metrics.iter().find(|it| it["metric"] == metric)?["estimate"].as_f64()
}

#[test]
fn an_engine_gets_as_many_requests_as_it_takes_and_the_wait_of_the_others_counts() {
    let engines = [("four", FOUR_AT_ONCE), ("one", ONE_AT_ONCE)];
    let run = serve(&engines, Verifier::None, &["--concurrency", "1,4"]);
    for (label, most) in [("four", [1, 4]), ("one", [1, 1])] {
        let windows = windows(&run, label);
        assert_eq!(windows.iter().map(Vec::len).collect::<Vec<_>>(), [4, 16], "{label}");
        assert_eq!(windows.iter().map(|it| most_open(it)).collect::<Vec<_>>(), most, "{label}");
    }
    // Another user's answer comes between the wish and the sending. The first request waits for none.
    let window = windows(&run, "one").pop().unwrap();
    let waits = |[wanted, sent, _]: &&[u64; 3]| {
        window.iter().any(|[.., answered]| (*wanted + 1..=*sent).contains(answered))
    };
    assert_eq!(window.iter().filter(waits).count(), 15);
    let cases: Vec<&Value> = run.report["cases"].as_array().unwrap().iter().collect();
    let case = |label: &str, name: &str| {
        cases.iter().copied().find(|it| it["engine"]["label"] == label && it["case"] == name).unwrap()
    };
    let ratio = |metric: &str| {
        let of = |label: &str| estimate(case(label, "serve 4"), metric).unwrap();
        of("four") / of("one")
    };
    // Four answers in the time of one; other work of the machine makes both slower.
    assert!(ratio("served_rate") > 1.5 && ratio("request_rate") > 1.5, "{}", run.report);
    assert!(ratio("first_token") < 1.0, "{}", ratio("first_token"));
    for metric in ["decode_rate", "prefill_rate"] {
        assert_eq!(estimate(case("four", "serve 4"), metric), None, "{metric}");
    }
    assert!(estimate(case("four", "serve 4"), "time_per_token").is_some());
}

#[test]
fn a_run_of_overlapping_requests_shows_their_latency_and_the_queue_over_time() {
    let scratch = Scratch::new();
    let shown = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        let results = scratch.results();
        command.args(options).arg("--results").arg(&results);
        finish(&mut command).exits_with(0)
    };
    let engine = scratch.engine("one", ONE_AT_ONCE).display().to_string();
    let plan =
        ["-e", &engine, "-s", "serve", "--prompt-tokens", "16", "--new-tokens", "4", "--requests", "12"];
    let rate = ["--request-rate", "200", "--burstiness", "even"];
    let run = shown(&[&plan[..], &rate, &SHORT[..6]].concat());
    let again = shown(&["report"]);
    for outcome in [&run, &again] {
        let (_, table) =
            outcome.stdout.split_once("latency of overlapping requests, since their arrival:").unwrap();
        for title in ["TTFT", "TTFT since sent", "ITL", "total", "queue over", "p95"] {
            assert!(table.contains(title), "no {title}: {table}");
        }
        let line = table.lines().find(|line| line.starts_with("serve 200/s")).unwrap();
        // Twelve requests come in 55 ms, and each takes at least 35 ms. So the queue grows, and then shrinks.
        let words: Vec<&str> = line.split_whitespace().collect();
        let queue: Vec<f64> =
            words[words.len() - 4..].iter().map(|it| it.trim_end_matches(',').parse().unwrap()).collect();
        assert!(queue[1] > 3.0 && queue[1] > queue[3], "{line}");
    }
}

#[test]
fn the_verifier_checks_the_tokens_of_overlapping_requests() {
    let wrong = format!("{FOUR_AT_ONCE} --wrong-from 1");
    let engines = [("four", FOUR_AT_ONCE), ("wrong", wrong.as_str())];
    let run = serve(&engines, Verifier::Engine(""), &["--concurrency", "4"]);
    let status = |label: &str| {
        let outputs = run.report["outputs"].as_array().unwrap();
        outputs.iter().find(|it| it["engine"] == label).unwrap()["status"].clone()
    };
    assert_eq!((status("four"), status("wrong")), ("exact".into(), "wrong".into()));
    assert!(!run.reference_tokens("four").is_empty() || run.report["outputs"].to_string().contains("gaps"));
}

#[test]
fn offline_has_all_requests_open_at_once() {
    let options = ["-s", "offline", "--prompt-tokens", "16", "--new-tokens", "4", "--requests", "20"];
    let run = run_selected(&[("four", FOUR_AT_ONCE)], Verifier::None, &[&options, SHORT].concat());
    let window = windows(&run, "four").pop().unwrap();
    assert_eq!((window.len(), most_open(&window)), (20, 4));
    assert!(window.iter().all(|[wanted, ..]| *wanted == window[0][0]), "{window:?}");
    assert_eq!(run.case_of("four")["headline"], "throughput");
}

#[test]
fn requests_arrive_at_their_rate_whether_or_not_earlier_ones_are_answered() {
    let engines = [("four", FOUR_AT_ONCE), ("one", ONE_AT_ONCE)];
    let rate = ["--request-rate", "50", "--burstiness", "even", "--requests", "8"];
    let run = serve(&engines, Verifier::None, &[&rate[..], &["--slo", "ttft=60s,itl=1ns"]].concat());
    for label in ["four", "one"] {
        let window = windows(&run, label).pop().unwrap();
        let wanted: Vec<u64> = window.iter().map(|[wanted, ..]| *wanted).collect();
        assert_eq!(wanted, (0..8).map(|it| it * 20_000_000).collect::<Vec<_>>(), "{label}");
        assert!(window.iter().all(|[wanted, sent, _]| wanted <= sent), "{window:?}");
        let case = run.case_of(label);
        assert_eq!(case["case"], "serve 50/s burstiness even requests 8");
        // Each request keeps the first limit, and none the second one.
        assert_eq!((estimate(case, "within_limits"), estimate(case, "goodput")), (Some(0.0), Some(0.0)));
        assert!(estimate(case, "request_rate").is_some() && estimate(case, "queue").is_some(), "{case}");
    }
    // Each answer of `one` takes 35 ms, so its users wait, and only their own clock shows it.
    let one = run.case_of("one");
    assert!(estimate(one, "first_token") > estimate(one, "first_token_since_sent"), "{one}");
    assert!(run.record.header()["plan"]["latency_limits"]["inter_token_ns"] == 1, "{}", run.record.header());
}

#[test]
fn all_engines_get_the_same_random_arrivals() {
    let engines = [("a", FOUR_AT_ONCE), ("b", FOUR_AT_ONCE)];
    let run = serve(&engines, Verifier::None, &["--request-rate", "80", "--duration", "100ms"]);
    let wanted = |label: &str| -> Vec<u64> {
        windows(&run, label).pop().unwrap().iter().map(|[wanted, ..]| *wanted).collect()
    };
    assert_eq!((wanted("a").len(), wanted("a")), (8, wanted("b")));
    let gaps: Vec<u64> = wanted("a").windows(2).map(|it| it[1] - it[0]).collect();
    assert!(gaps.iter().any(|gap| *gap != gaps[0]), "{gaps:?}");
}

#[test]
fn a_trace_gives_the_arrivals_and_the_lengths_of_requests() {
    let scratch = Scratch::new();
    let trace = scratch.join("morning.csv");
    std::fs::write(&trace, "seconds,prompt,new\n0,16,4\n0.05,8,2\n0.02,24,6\n").unwrap();
    let options = ["-s", "serve", "--trace", trace.to_str().unwrap()];
    let run = run_selected(&[("four", FOUR_AT_ONCE)], Verifier::Engine(""), &[&options, SHORT].concat());
    let wanted: Vec<u64> = windows(&run, "four").pop().unwrap().iter().map(|[wanted, ..]| *wanted).collect();
    assert_eq!(wanted, [0, 20_000_000, 50_000_000]);
    let sample = run.record.samples_of("four").remove(0).clone();
    let lengths = sample["iteration"]["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["prompt_tokens"].as_u64().unwrap(), it["output_ids"].as_array().unwrap().len()));
    assert_eq!(lengths.collect::<Vec<_>>(), [(16, 4), (24, 6), (8, 2)]);
    assert_eq!(run.case_of("four")["case"], "serve morning.csv");
    assert_eq!(run.report["outputs"][0]["status"], "exact", "{}", run.report["outputs"]);
}

#[test]
fn each_round_searches_the_highest_rate_that_keeps_the_limits() {
    let search = ["--request-rate", "highest", "--burstiness", "even", "--requests", "8"];
    let engines = [("four", FOUR_AT_ONCE), ("one", ONE_AT_ONCE)];
    let with = |slo: &str| serve(&engines, Verifier::Engine(""), &[&search[..], &["--slo", slo]].concat());
    let run = with("ttft=60s");
    for label in ["four", "one"] {
        // All requests keep the limit at the rate of all at once.
        for sample in run.record.samples_of(label) {
            let steps = sample["search"].as_array().unwrap();
            assert_eq!(
                (steps.len(), &steps[0]["held"], &steps[0]["within_limits"]),
                (1, &true.into(), &1.0.into())
            );
        }
        let case = run.case_of(label);
        assert_eq!(
            (&case["headline"], &case["case"]),
            (&"highest_rate".into(), &"serve highest rate burstiness even requests 8".into())
        );
        assert!(estimate(case, "highest_rate") > Some(0.0), "{case}");
    }
    let status = run.report["outputs"].as_array().unwrap().iter().map(|it| it["status"].clone());
    assert_eq!(status.collect::<Vec<_>>(), ["exact", "exact"]);
    // No rate keeps a limit of a nanosecond, so each step halves the range.
    let run = with("itl=1ns");
    let sample = run.record.samples_of("four").remove(0).clone();
    let rates: Vec<f64> =
        sample["search"].as_array().unwrap().iter().map(|it| it["rate"].as_f64().unwrap()).collect();
    assert!(rates.len() == 6 && rates.windows(2).all(|it| (it[0] / it[1] - 2.0).abs() < 1e-9), "{rates:?}");
    assert_eq!(estimate(run.case_of("four"), "highest_rate"), None);
}

#[test]
fn requests_of_a_window_may_have_lengths_of_a_distribution() {
    let options = ["-s", "serve", "--concurrency", "4", "--lengths", "lognormal", "--new-tokens", "16"];
    let options = [&options[..], SHORT, &["--prompt-tokens", "32"]].concat();
    let run = run_selected(&[("four", FOUR_AT_ONCE)], Verifier::Engine(""), &options);
    let sample = run.record.samples_of("four").remove(0).clone();
    let sequences = sample["iteration"]["sequences"].as_array().unwrap();
    let lengths = |length: fn(&Value) -> u64| {
        let all: std::collections::BTreeSet<u64> = sequences.iter().map(length).collect();
        (all.len(), *all.last().unwrap())
    };
    let (kinds, longest) = lengths(|it| it["prompt_tokens"].as_u64().unwrap());
    assert!(kinds >= 8 && longest <= 32, "{kinds} {longest}");
    let (kinds, longest) = lengths(|it| it["output_ids"].as_array().unwrap().len() as u64);
    assert!(kinds >= 4 && longest <= 16, "{kinds} {longest}");
    assert_eq!(run.report["outputs"][0]["status"], "exact", "{}", run.report["outputs"]);
}

#[test]
fn all_engines_get_the_lengths_of_the_same_real_requests() {
    let scratch = Scratch::new();
    let file = scratch.join("chat.csv");
    let lengths = [(5, 3), (8, 2), (16, 4), (24, 6), (30, 1)];
    let lines = lengths.map(|(prompt, new)| format!("{new},{prompt}"));
    std::fs::write(&file, format!("GeneratedTokens,ContextTokens\n{}\n", lines.join("\n"))).unwrap();
    let options = ["-s", "serve", "--concurrency", "2", "--lengths", file.to_str().unwrap()];
    let engines = [("a", FOUR_AT_ONCE), ("b", FOUR_AT_ONCE)];
    let run = run_selected(&engines, Verifier::Engine(""), &[&options, SHORT].concat());
    let used = |label: &str| -> Vec<(u64, u64)> {
        let sample = run.record.samples_of(label).remove(0).clone();
        let sequences = sample["iteration"]["sequences"].as_array().unwrap().clone();
        let of = |it: &Value| {
            (it["prompt_tokens"].as_u64().unwrap(), it["output_ids"].as_array().unwrap().len() as u64)
        };
        sequences.iter().map(of).collect()
    };
    assert_eq!((used("a").len(), used("a")), (8, used("b")));
    assert!(used("a").iter().all(|it| lengths.contains(it)), "{:?}", used("a"));
    // Eight parts of the file, from short to long, give a request each.
    assert_eq!(used("a").iter().filter(|it| **it == (30, 1)).count(), 1, "{:?}", used("a"));
    assert_eq!(run.case_of("a")["case"], "serve chat.csv");
    assert_eq!(run.report["outputs"][0]["status"], "exact", "{}", run.report["outputs"]);
    let stored = &run.record.header()["plan"]["cases"][0]["workload"]["lengths"]["file"];
    assert_eq!((&stored["requests"], &stored["largest"]), (&5.into(), &serde_json::json!([30, 1])));
    assert_eq!(stored["drawn"].as_array().unwrap().len(), 8, "{stored}");
    // Each of these requests fits the context of 2,048 tokens. A request with the longest of both would not.
    std::fs::write(&file, "2000,8\n8,2000\n").unwrap();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("c", FOUR_AT_ONCE)).args(options).arg("--dry-run");
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let plan = without_line_breaks(&outcome.stdout);
    assert!(plan.contains("serve chat.csv: 1 round of 8 requests in each block"), "{plan}");
    assert!(plan.contains("; lengths of chat.csv: 2 requests"), "{plan}");
}

/// An engine with a prefix cache, and one without.
fn with_and_without_prefix_cache() -> [(&'static str, &'static str); 2] {
    [("cached", "--prefix-cache true"), ("plain", "")]
}

/// The cached and all prompt tokens of each request of an engine, by case.
fn prompt_tokens(run: &Run, label: &str) -> Vec<Vec<(Option<u64>, u64)>> {
    let count = |it: &Value| (it["cached_prompt_tokens"].as_u64(), it["prompt_tokens"].as_u64().unwrap());
    let samples = run.record.samples_of(label).into_iter();
    samples.map(|it| it["iteration"]["sequences"].as_array().unwrap().iter().map(count).collect()).collect()
}

#[test]
fn a_shared_prefix_comes_from_the_cache_of_an_engine_that_has_one() {
    let options = ["--concurrency", "1", "--shared-prefix", "0,48"];
    let run = serve(&with_and_without_prefix_cache(), Verifier::Engine(""), &options);
    let [alone, shared] = &prompt_tokens(&run, "cached")[..] else { panic!("{}", run.report) };
    assert_eq!(alone[..], [16, 12, 8, 4].map(|tokens| (Some(0), tokens)));
    assert_eq!(shared.iter().map(|it| it.1).collect::<Vec<_>>(), [64, 60, 56, 52]);
    // The prompts differ after the prefix, up to an equal id by chance.
    let cached: Vec<u64> = shared.iter().map(|it| it.0.unwrap()).collect();
    assert!(cached[0] < 48 && cached[1..].iter().all(|it| (48..=50).contains(it)), "{cached:?}");
    assert!(prompt_tokens(&run, "plain").concat().iter().all(|it| it.0.is_none()));
    let found: Vec<_> = run.report["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| {
            let (engine, name) = (case["engine"]["label"].as_str().unwrap(), case["case"].as_str().unwrap());
            (engine, name, case["prefix_cache"] == true, estimate(case, "cached_prompt").is_some())
        })
        .collect();
    let with_prefix = "serve shared prefix 48";
    let expected = [("cached", "serve", false, false), ("plain", "serve", false, false)];
    let expected =
        [expected, [("cached", with_prefix, true, true), ("plain", with_prefix, true, false)]].concat();
    assert_eq!(found, expected);
    let status = run.report["outputs"].as_array().unwrap().iter().map(|it| it["status"].clone());
    assert_eq!(status.collect::<Vec<_>>(), ["exact", "exact"]);
    assert!(run.report["contradictions"].as_array().unwrap().is_empty(), "{}", run.report["contradictions"]);
    let planned = run.record.header()["plan"]["cases"].as_array().unwrap().clone();
    let with_caches = planned.iter().map(|it| &it["workload"]).filter(|it| it["prefix_cache"] == true);
    assert_eq!(with_caches.map(|it| it["shared_prefix"].clone()).collect::<Vec<_>>(), [48, 48]);
}

/// The texts of a conversation of an engine: its turns with their prompt tokens and their output.
fn turns<'a>(run: &'a Run, label: &str, turns: usize) -> Vec<Vec<&'a Value>> {
    let sample = run.record.samples_of(label).pop().unwrap();
    let sequences = sample["iteration"]["sequences"].as_array().unwrap();
    sequences.chunks(turns).map(|it| it.iter().collect()).collect()
}

#[test]
fn each_turn_of_a_conversation_repeats_the_turns_before_it() {
    let options = ["--concurrency", "2", "--turns", "3", "--lengths", "even", "--requests", "6"];
    let engines = with_and_without_prefix_cache();
    let run = serve(&engines, Verifier::Engine(""), &options);
    for (label, _) in engines {
        for conversation in turns(&run, label, 3) {
            // Each turn has 16 new tokens, and an answer of 4.
            let prompts: Vec<_> =
                conversation.iter().map(|it| it["prompt_tokens"].as_u64().unwrap()).collect();
            assert_eq!(prompts, [16, 36, 56], "{label}");
            let cached: Vec<_> = conversation.iter().map(|it| it["cached_prompt_tokens"].as_u64()).collect();
            match label {
                "cached" => {
                    // All before the new text was computed in the turn before.
                    assert!(cached[1] >= Some(20) && cached[1] < Some(36), "{cached:?}");
                    assert!(cached[2] >= Some(40) && cached[2] < Some(56), "{cached:?}");
                }
                _ => assert_eq!(cached, [None; 3]),
            }
        }
        // A user sends the next turn after the answer to the one before it.
        let window = windows(&run, label).pop().unwrap();
        for conversation in window.chunks(3) {
            assert!(conversation.windows(2).all(|it| it[1][0] == it[0][2]), "{label}: {conversation:?}");
        }
    }
    let status = run.report["outputs"].as_array().unwrap().iter().map(|it| it["status"].clone());
    assert_eq!(status.collect::<Vec<_>>(), ["exact", "exact"]);
    let case = run.case_of("cached");
    assert_eq!(
        (&case["case"], &case["prefix_cache"]),
        (&"serve requests 6 even lengths turns 3".into(), &true.into())
    );
    assert!(estimate(case, "cached_prompt") > Some(0.3), "{case}");
}

#[test]
fn the_verifier_checks_a_turn_with_the_engines_own_answers() {
    // Wrong answers are repeated in the next prompts, and a text engine gives no ids of its answers.
    let wrong = "--wrong-from 1";
    let text = r#"--output text --models-tokenizer true --capabilities '{"stream":false,"score":false}'"#;
    let engines = [("right", ""), ("wrong", wrong), ("text", text)];
    let options = ["-s", "serve", "--concurrency", "2", "--turns", "2", "--new-tokens", "32"];
    let options = [&options[..], &["--prompt-tokens", "16", "--iterations", "3"]].concat();
    let short = ["--blocks", "1", "--warmup", "0", "--json", "-"];
    let run = run_selected(&engines, Verifier::Engine(""), &[&options[..], &short].concat());
    let status = |label: &str| run.status(label);
    assert_eq!((status("right"), status("wrong"), status("text")), ("exact", "wrong", "text_agrees"));
    // The output check names no sample of which the prompt is unknown.
    assert!(!run.report["warnings"].to_string().contains("were not checked"), "{}", run.report["warnings"]);
}

#[test]
fn conversations_arrive_so_that_their_requests_have_the_rate() {
    let options = ["--request-rate", "50", "--burstiness", "even", "--requests", "8", "--turns", "2"];
    let run = serve(&[("four", FOUR_AT_ONCE)], Verifier::None, &options);
    let window = windows(&run, "four").pop().unwrap();
    let (begun, followed): (Vec<_>, Vec<_>) = window.chunks(2).map(|it| (it[0], it[1])).unzip();
    assert_eq!(begun.iter().map(|it| it[0]).collect::<Vec<_>>(), [0, 40_000_000, 80_000_000, 120_000_000]);
    assert!(begun.iter().zip(&followed).all(|(first, second)| second[0] == first[2]), "{window:?}");
}

#[test]
fn cases_that_allow_prefix_caches_are_labelled_in_the_plan_and_in_the_tables() {
    let scratch = Scratch::new();
    let engine = scratch.engine("cached", "--prefix-cache true");
    let scenario = ["-s", "serve", "--concurrency", "1", "--prompt-tokens", "16", "--new-tokens", "4"];
    let short = ["--shared-prefix", "48", "--blocks", "1", "--warmup", "0", "--verifier", "none"];
    let run = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(&engine).args(scenario).args(short).args(options);
        finish(command.arg("--results").arg(scratch.results())).exits_with(0).stdout
    };
    let plan = without_line_breaks(&run(&["--dry-run"]));
    let requests = "serve shared prefix 48: 1 round of 4 requests in each block; prefix caches are allowed";
    assert!(plan.contains(requests), "{plan}");
    for table in [run(&[]), run(&["--full"])] {
        assert!(table.contains("prefix caches are allowed in: serve shared prefix 48"), "{table}");
        assert!(table.contains("cached"), "{table}");
    }
}

#[test]
fn users_and_rates_exclude_each_other_and_bad_values_are_refused() {
    let scratch = Scratch::new();
    let refused_in = |scenario: &str, options: &[&str], reason: &str| {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(scratch.engine("four", FOUR_AT_ONCE)).args(["-s", scenario]).args(options);
        let refused = finish(command.arg("--results").arg(scratch.results())).exits_with(2);
        let is_named = without_line_breaks(&refused.stderr).contains(reason);
        assert!(is_named && refused.stderr.contains("\nhint: "), "{}", refused.stderr);
    };
    let refused = |options: &[&str], reason: &str| refused_in("serve", options, reason);
    refused_in("decode", &["--slo", "ttft=1s"], "--slo: none of the selected scenarios");
    refused(&["--concurrency", "4", "--request-rate", "2"], "--request-rate");
    refused(&["--duration", "5s"], "--duration: in `serve` it needs `--request-rate`");
    refused(&["--request-rate", "highest"], "the limits of `--slo` are missing");
    refused(&["--request-rate", "0"], "from 0.001");
    refused(&["--request-rate", "2", "--burstiness", "x"], "`even`");
    refused(&["--slo", "p99=5ms"], "ttft=500ms");
    refused(&["--trace", "no-such-file.csv"], "no-such-file.csv");
    refused(&["--trace", "no-such-file.csv", "--shared-prefix", "8"], "--shared-prefix");
    refused_in("decode", &["--shared-prefix", "8"], "--shared-prefix");
    refused(&["--trace", "no-such-file.csv", "--turns", "2"], "--turns");
    refused(&["--turns", "0"], "--turns");
    let lengths = scratch.join("chat.csv");
    std::fs::write(&lengths, "prompt_tokens,new_tokens\n8,2\n4000,100\n").unwrap();
    let lengths = ["--lengths", lengths.to_str().unwrap()];
    for other in
        [["--prompt-tokens", "8"], ["--new-tokens", "2"], ["--prompt", "Hello"], ["--prompts", "short"]]
    {
        let reason = format!("{}: the lengths of requests come from `--lengths ", other[0]);
        refused(&[&lengths[..], &other].concat(), &reason);
    }
    refused(&lengths, "4,000 prompt tokens and 100 new tokens exceed the context of 2,048");
    refused_in("decode", &lengths, "--lengths: none of the selected scenarios uses it");
    refused(&["--lengths", "unifor"], "no kind of lengths");
}

#[test]
fn an_engine_that_ends_within_a_window_or_confuses_ids_is_a_row_with_its_reason() {
    let ends = format!("{FOUR_AT_ONCE} --fault exits_at_sample --at 5");
    let confuses = format!("{FOUR_AT_ONCE} --fault wrong_id --at 3");
    let engines = [("ends", ends.as_str()), ("confuses", confuses.as_str()), ("healthy", FOUR_AT_ONCE)];
    let run = serve(&engines, Verifier::None, &["--concurrency", "4"]);
    run.assert_failed("ends", "exited", "sample 1");
    run.assert_stderr("ends", "fake");
    let failure = run.assert_failed("confuses", "protocol", "sample 1");
    assert!(failure["message"].as_str().unwrap().contains("no open request has it"), "{failure}");
    run.assert_samples("healthy", 1);
}

#[test]
fn a_one_shot_process_cannot_serve_several_users() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("four", FOUR_AT_ONCE)).args(["-s", "serve", "--mode", "one-shot"]);
    let refused = finish(command.arg("--results").arg(scratch.results())).exits_with(2);
    assert!(refused.stderr.contains("ids of requests"), "{}", refused.stderr);
}

#[test]
fn no_token_of_overlapping_streams_is_lost() {
    let scratch = Scratch::new();
    let outcome = finish(scratch.orchestrate().args(["overhead", "--format", "json"])).exits_with(0);
    let costs: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let count = |name: &str| {
        let costs = costs.as_array().unwrap().iter();
        costs.filter(|it| it["name"] == name).map(|it| it["n"].as_u64().unwrap()).sum::<u64>()
    };
    // Three windows of a second, with whole steps of 32 tokens.
    assert_eq!(count("32 streams at 1,000/s"), 3 * 31 * 32);
    assert_eq!(count("32 streams at 50,000/s"), 3 * 1562 * 32);
}
