//! Measures the smallest change that this machine can show: each engine is compared with its twin. The noise floors are printed,
//! and stored for the machine. The header of every later record has the floors of its own cases.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::analysis::metric::{self, Shown};
use crate::analysis::noise_floors::{KnownFloor, MIN_STORED_BLOCKS, floors_of, plan_of};
use crate::cli::RunArgs;
use crate::commands::dry_run;
use crate::commands::experiment::{self, MeasuredRun};
use crate::commands::noise_floors;
use crate::commands::output;
use crate::engines::registry::Registry;
use crate::machine::Machine;
use crate::plan::scenario::Kind;
use crate::plan::{Order, Plan, Selection};
use crate::record::RunRecord;
use crate::report::Content;
use crate::report::document::{
    Column, Document, Layouts, Line, Lines, List, NamedField, Section, Table, column,
};
use crate::report::headings::{BETWEEN, BLOCKS, CASE, ENGINE, METRIC, PAIRED};
use crate::report::json::json_bytes;
use crate::shell::{Usage, this_command_without, unused_option};
use crate::text::{line, plural, shorten_start};
use stats::NoiseFloor;

pub fn calibrate(mut arguments: RunArgs) -> Result<u8> {
    refuse_unused_arguments(&arguments)?;
    let engines_are_named = arguments.all || !arguments.engines.is_empty();
    if !engines_are_named {
        // Without names, all engines that are ready are measured, and none is built.
        (arguments.all, arguments.no_setup) = (true, true);
    }
    let registry = Registry::open()?;
    let resolved = experiment::resolve(&registry, &arguments)?;
    let selection = resolved.without_set_up()?;
    let only_scores = selection.scenarios.iter().all(|it| it.kind == Kind::Score);
    ensure!(!only_scores, Usage(no_noise()));
    let plan = |selection: &Selection| {
        if engines_are_named { Ok(plan_of(selection)) } else { plan_of_ready_engines(selection) }
    };
    if arguments.extent.dry_run {
        return dry_run::show(&plan(&selection)?, &resolved.results, &[], &resolved.prepared_first());
    }
    let ready = resolved.make_ready()?;
    let plan = plan(&ready.selection)?;
    let MeasuredRun { recorder, end } = ready.run(plan)?;
    let record = &recorder.record;
    let floors = floors_of(record);
    // The floors of an interrupted run are stored too, if they have enough blocks.
    let to_store: Vec<KnownFloor> =
        floors.iter().filter(|it| it.paired.blocks() >= MIN_STORED_BLOCKS).cloned().collect();
    let file = store(&record.header.machine, &to_store);
    let floors = Floors { record, floors: &floors, file: file.as_deref().ok() };
    if arguments.json.as_deref() != Some(Path::new("-")) {
        output::show(&floors, arguments.view.format)?;
    }
    if let Some(path) = &arguments.json {
        output::write(&floors.json(), path)?;
    }
    file?;
    Ok(experiment::exit_code(record, end?, &arguments.names()))
}

fn no_noise() -> String {
    let scenario = [("-s", true), ("--scenario", true)];
    let hint = this_command_without(&scenario, &["-s", "decode"]);
    format!(
        "`calibrate` measures noise, and a score has none: each configuration scores the text once\nhint: {hint}"
    )
}

/// Stores the noise floors and returns the path; without floors nothing is stored.
fn store(machine: &Machine, floors: &[KnownFloor]) -> Result<String> {
    if floors.is_empty() {
        return Ok(String::new());
    }
    let file = noise_floors::file_of(machine)?;
    noise_floors::store(&file, machine, floors)?;
    Ok(file.display().to_string())
}

fn plan_of_ready_engines(selection: &Selection) -> Result<Plan> {
    let mut ready = selection.clone();
    let devices = &selection.devices;
    ready.candidates.retain(|it| devices.iter().any(|device| it.start_for(device).unavailable.is_none()));
    let no_engine = "no engine is ready for calibration\nhint: orchestrate engines";
    ensure!(!ready.candidates.is_empty(), Usage(no_engine.into()));
    Ok(plan_of(&ready))
}

/// The options of a run that the help leaves out, because `refuse_unused_arguments` refuses them.
pub const REFUSED: &[&str] = &[
    "order",
    "save_baseline",
    "baseline",
    "rerun_baseline",
    "pairs",
    "wall_time",
    "distribution",
    "serving",
    "settings",
    "quality",
    "precision",
    "resources",
    "price_per_hour",
    "fail_on",
    "warning",
    "critical",
    "force",
];

fn refuse_unused_arguments(arguments: &RunArgs) -> Result<()> {
    let (extent, baseline, view) = (&arguments.extent, &arguments.baseline, &arguments.view);
    let given = [
        ("--order sequential", extent.order == Order::Sequential, "an engine and its twin alternate"),
        ("--save-baseline NAME", baseline.save_baseline.is_some(), "a calibration is stored for the machine"),
        ("--baseline NAME", baseline.baseline.is_some(), "there is nothing to compare"),
        ("--pairs", view.pairs, "there is nothing to compare"),
        (
            "--price-per-hour PRICE",
            view.price_per_hour.is_some(),
            "`orchestrate report --price-per-hour PRICE RECORD` prints the table",
        ),
    ];
    for (flag, is_given, why) in given {
        ensure!(!is_given, unused_option("calibrate", flag, why));
    }
    if let Some(option) = arguments.judge.first_given() {
        bail!(unused_option("calibrate", option, "there is nothing to compare"));
    }
    if let Some((option, _)) = view.tables.selected().first() {
        let option = option.replace('_', "-");
        let why = format!("`orchestrate report --{option} RECORD` prints the table");
        bail!(unused_option("calibrate", &format!("--{option}"), &why));
    }
    Ok(())
}

/// The width that the other columns leave in a line of 80 characters.
const MAX_ENGINE_WIDTH: usize = 26;

/// The columns of a spreadsheet.
const COLUMNS: [&str; 7] = ["record", "engine", "case", "metric", "paired", "between", "blocks"];

struct Floors<'a> {
    record: &'a RunRecord,
    floors: &'a [KnownFloor],
    /// The path of the file in which the floors are stored: empty if all have too few blocks, `None` if it could not be written.
    file: Option<&'a str>,
}

impl Content for Floors<'_> {
    fn document(&self, _: Layouts) -> Document {
        let lines: Vec<Line> = self.floors.iter().filter_map(|known| self.line(known)).collect();
        if lines.is_empty() {
            let nothing = "no engine was measured with a twin, so the noise floor is unknown";
            return Document { parts: vec![Section::NoTable(nothing)], summary: None };
        }
        let values = [PAIRED, BETWEEN, BLOCKS].map(|heading| Column::value(heading, ""));
        let columns = [ENGINE, CASE, METRIC].map(Column::named).into_iter().chain(values).collect();
        let parts = vec![
            Section::Heading("the noise floor of this machine:".into()),
            Section::Table(Table { columns, lines, gap: 2, ..Table::default() }),
            Section::List(List::plain(notes(self.floors, self.file))),
        ];
        Document { parts, summary: None }
    }

    /// The noise floors as fractions: 0.02 is 2 %.
    fn lines(&self) -> Option<Lines> {
        let fraction = |floor: NoiseFloor| floor.log_ratio().exp_m1();
        let fields = |known: &KnownFloor| -> Vec<NamedField> {
            vec![
                (column!("record"), (&known.record).into()),
                (column!("engine"), self.label(known).as_str().into()),
                (column!("case"), line(&known.key.workload).as_str().into()),
                (column!("metric"), known.key.metric.as_str().into()),
                (column!("paired"), fraction(known.paired).into()),
                (column!("between"), known.between.map(fraction).into()),
                (column!("blocks"), known.paired.blocks().into()),
            ]
        };
        Some(Lines { columns: &COLUMNS, lines: self.floors.iter().map(fields).collect() })
    }

    fn json(&self) -> Vec<u8> {
        json_bytes(&self.floors)
    }
}

impl Floors<'_> {
    fn label(&self, known: &KnownFloor) -> String {
        let plan = &self.record.header.plan;
        line(plan.configurations.get(known.configuration).map_or(&known.key.engine, |it| &it.label))
    }

    /// The line of a floor; `None` if the metric is shown only as a headline, and the case has another headline.
    fn line(&self, known: &KnownFloor) -> Option<Line> {
        let (plan, key) = (&self.record.header.plan, &known.key);
        let case = plan.cases.iter().find(|case| case.workload.label == key.workload);
        let headline = case.and_then(|case| metric::headline(plan, &case.workload));
        let metric = metric::find(key.metric)?;
        if metric.shown == Shown::AsHeadline && headline.is_none_or(|it| it.id != metric.id) {
            return None;
        }
        Some(Line::of(vec![
            shorten_start(&self.label(known), MAX_ENGINE_WIDTH),
            line(&key.workload),
            metric.title.to_string(),
            percent(known.paired),
            known.between.map_or_else(|| "n/a".into(), percent),
            known.paired.blocks().to_string(),
        ]))
    }
}

fn percent(floor: NoiseFloor) -> String {
    let percent = floor.log_ratio().exp_m1() * 100.0;
    // 9.95 and more is rounded to 10 or more, which has two digits without a decimal.
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn notes(floors: &[KnownFloor], file: Option<&str>) -> Vec<String> {
    let mut notes = vec![
        "paired: the difference between an engine and its twin in one block (95th percentile). In one run, only a \
         difference above this and above 2 % counts"
            .to_string(),
        "between: the difference between two blocks of one engine (95th percentile). Between two runs, \
         only a difference above this and above 2 % counts"
            .to_string(),
    ];
    let fewest = floors.iter().map(|it| it.paired).min_by_key(|floor| floor.blocks());
    if let Some(blocks) = fewest.filter(|floor| !floor.is_reliable()).map(|floor| floor.blocks()) {
        let blocks = plural(blocks, "block");
        notes.push(format!(
            "a 95th percentile of {blocks} is close to the maximum; 20 blocks make it reliable"
        ));
    }
    match file {
        Some("") => notes.push(format!("not stored for later runs: that needs {MIN_STORED_BLOCKS} blocks")),
        Some(path) => notes.push(format!("stored in `{path}`; every later run on this machine uses it")),
        None => {}
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::noise_floors;
    use crate::engines::load_values::LoadValues;
    use crate::plan::arguments::suite_of;
    use crate::plan::scenario::SUITES;
    use crate::plan::selection::{self, Sources};
    use crate::plan::{Case, models};
    use crate::record::specimen::{planned, timed};
    use crate::report;
    use crate::text::width;

    fn shown(engines: &[&str], blocks: u32, file: Option<&str>) -> String {
        let selection = timed::selection(engines, &["default"]);
        let mut record = planned(&selection);
        record.header.plan = noise_floors::plan_of(&selection);
        for block in 0..blocks {
            for configuration in 0..record.header.plan.configurations.len() {
                let launch = timed::launch(&mut record, configuration, block, "x");
                for case in record.header.plan.cases_of(configuration) {
                    // The first configuration has no noise.
                    let token_ms = 2.0 + f64::from(block % 5) * 0.1 * configuration as f64;
                    timed::answer(&mut record, launch, case, 0, token_ms);
                }
            }
        }
        let floors = noise_floors::floors_of(&record);
        let floors = Floors { record: &record, floors: &floors, file };
        report::shown(&floors, "table", Some(80))
    }

    #[test]
    fn the_table_fits_eighty_columns_with_long_and_unsafe_engine_names() {
        let engines = ["calm", "an-engine-with-a-long-name:and-a-long-preset\u{1b}[2J"];
        let shown = shown(&engines, 20, Some("/data/x.json"));
        for line in shown.lines() {
            assert!(width(line) <= 80 && !line.contains('\u{1b}'), "{line:?}");
        }
        assert!(shown.lines().nth(2).unwrap().starts_with("engine"), "{shown}");
        let decode = shown.lines().find(|line| line.contains("decode") && line.contains("20")).unwrap();
        assert!(decode.contains(" %"), "{decode}");
        assert!(shown.contains("stored in `/data/x.json`"), "{shown}");
        assert!(!shown.contains("20 blocks make it reliable"), "{shown}");
        assert_eq!(
            shown.matches("calm").count(),
            1,
            "only the first line of an engine has its name: {shown}"
        );
    }

    #[test]
    fn a_note_warns_about_too_few_blocks() {
        let shown = shown(&["a"], 1, Some(""));
        for part in ["a 95th percentile of 1 block", "needs 5 blocks", "n/a"] {
            assert!(shown.contains(part), "{shown}");
        }
    }

    #[test]
    fn a_calibration_without_samples_has_a_note_in_place_of_the_table() {
        assert!(shown(&["a"], 0, None).contains("the noise floor is unknown"));
    }

    /// The plan of `orchestrate calibrate` with these arguments. Arguments have no spaces.
    fn plan_of_arguments(arguments: &str) -> Plan {
        #[derive(clap::Parser)]
        struct Parsed {
            #[command(flatten)]
            run: RunArgs,
        }
        let words = arguments.split_whitespace().map(|word| word.replace('\'', ""));
        let parsed: Parsed = clap::Parser::parse_from(std::iter::once("calibrate".into()).chain(words));
        let registry = Registry::open().unwrap();
        let (names, settings) = (parsed.run.names(), parsed.run.settings());
        let sources = Sources { load_values: &mut |_| Ok(LoadValues::default()), model: &mut models::model };
        let selection = selection::resolve(&registry, &names, settings, sources).unwrap();
        Plan::new(&selection.without_set_up().unwrap())
    }

    #[test]
    fn the_arguments_of_a_plan_select_the_same_configurations_and_requests() {
        for arguments in [
            "-e /bin/true",
            "-e /bin/true -e /bin/false --reference /bin/false --threads 1,7 -s decode,ttft",
            "-e /bin/true --dtype bf16,f32 --set a=1 --set b=text --set c=\"2\" --device cuda:0,cpu --seed 5",
            "-e /bin/true -s prefill --prompt Hello --new-tokens 9 --iterations 2 --warmup 0 --temperature 0.5",
            "-e /bin/true --mode one-shot -s load",
            "-e /bin/true -s batch --batch 2,3 --padding left,right",
            "-e /bin/true -s throughput,batch",
            "-e /bin/true --batch 4 --new-tokens 64",
            "-e /bin/true -s load,decode --new-tokens 64 --padding packed --batch 2",
            "-e /bin/true -s decode --depth 0,64 --prompt-tokens 7,9 --use-cache true,false",
            "-e /bin/true -s edge",
            "-e /bin/true -s prefill",
            "-e /bin/true -s prefill --prompt-tokens 3000,100,4000 --prompts code,short",
            "-e /bin/true -s full",
            "-e /bin/true -s default,ttft",
            "-e /bin/true -s decode --prompts natural,src/plan/texts/code.txt,src/plan/texts/lines.txt",
            "-e /bin/true --prompts src/plan/texts/code.txt",
        ] {
            let plan = plan_of_arguments(arguments);
            let cases: Vec<usize> = (0..plan.cases.len()).collect();
            let hinted = plan_of_arguments(&plan.arguments_of(&cases));
            assert_eq!(hinted.configurations, plan.configurations, "{arguments}");
            assert_eq!((hinted.cases, hinted.seed, hinted.mode), (plan.cases, plan.seed, plan.mode));
            assert_eq!(hinted.reference, plan.reference, "{arguments}");
        }
    }

    #[test]
    fn the_arguments_of_some_cases_with_lengths_of_their_own_select_the_same_requests() {
        let plan = plan_of_arguments("-e /bin/true -s edge");
        let is_refused = |case: &Case| ["edge empty", "edge beyond"].contains(&case.workload.label.as_str());
        let cases: Vec<usize> = (0..plan.cases.len()).filter(|&it| !is_refused(&plan.cases[it])).collect();
        let answered: Vec<Case> = cases.iter().map(|&case| plan.cases[case].clone()).collect();
        assert_eq!(plan_of_arguments(&plan.arguments_of(&cases)).cases, answered);
        let plan = plan_of_arguments("-e /bin/true -s prefill");
        let last = plan.cases.iter().position(|it| it.workload.label.ends_with("full context")).unwrap();
        let arguments = plan.arguments_of(&[last]);
        assert!(arguments.contains(" -s prefill --prompt-tokens 2047 "), "{arguments}");
        assert_eq!(plan_of_arguments(&arguments).cases[0].workload.prompt, plan.cases[last].workload.prompt);
    }

    #[test]
    fn the_arguments_of_some_cases_of_a_suite_select_them_with_its_values() {
        let arguments = |run: &str, labels: &[&str]| {
            let plan = plan_of_arguments(run);
            let cases = 0..plan.cases.len();
            let named = cases.filter(|&it| labels.contains(&plan.cases[it].workload.label.as_str()));
            plan.arguments_of(&named.collect::<Vec<_>>()).split(" --threads").next().unwrap().to_string()
        };
        let default = "-e /bin/true";
        assert_eq!(
            arguments(default, &["load", "prefill"]),
            "-e /bin/true -s load,prefill --prompt-tokens 1024 --page-cache kept"
        );
        assert_eq!(arguments(default, &["ttft 512", "prefill"]), "-e /bin/true");
        let both = "-e /bin/true -s default,ttft";
        assert_eq!(arguments(both, &["ttft 10", "ttft 128", "prefill"]), "-e /bin/true -s default,ttft");
    }

    #[test]
    fn a_request_with_a_length_of_its_own_is_named_without_a_length() {
        let named = |arguments: &str, label: &str| {
            let mut plan = plan_of_arguments(arguments);
            plan.nonce = Some(7);
            let case = plan.cases.iter().position(|it| it.workload.label == label).unwrap();
            plan.request_arguments(case)
        };
        let edge = Some("/bin/true edge --nonce 7".to_string());
        assert_eq!(named("-e /bin/true -s edge", "edge long"), edge);
        let prefill = Some("/bin/true prefill --nonce 7".to_string());
        assert_eq!(named("-e /bin/true -s prefill", "prefill 2047 full context"), prefill);
        // As a single length, 2047 gives another label, and so other prompts.
        let only_long = "-e /bin/true -s prefill --prompt-tokens 3000,4000";
        assert_eq!(named(only_long, "prefill 2047 full context"), None);
    }

    #[test]
    fn each_suite_of_several_scenarios_is_known_by_its_workloads() {
        for suite in SUITES.iter().filter(|suite| suite.scenarios().len() > 1) {
            let plan = plan_of_arguments(&format!("-e /bin/true -s {}", suite.name));
            let found = suite_of(plan.cases.iter().map(|it| &it.workload)).map(|it| it.name);
            assert_eq!(found, Some(suite.name));
        }
    }
}
