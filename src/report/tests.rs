use super::specimen::*;
use super::*;
use crate::record::{Entry, RunRecord};

fn rendered(record: &RunRecord, format: &str, width: usize) -> String {
    let bytes = (named(format).unwrap().render)(&Report::of(record), Some(width));
    String::from_utf8(bytes).unwrap()
}

fn default_suite() -> RunRecord {
    let mut record = measured(&asked(&["pytorch-baseline", "candle", "burn"]), &[BASELINE, CANDLE]);
    unavailable(&mut record, 2, "not set up", "orchestrate setup burn");
    record
}

#[test]
fn every_format_renders_the_default_suite() {
    for width in [120, 100, 80] {
        println!("{}\n=====", rendered(&default_suite(), "table", width));
    }
    println!("{}", rendered(&default_suite(), "markdown", 100));
    println!("{}", rendered(&default_suite(), "csv", 100));
    println!("{}", &rendered(&default_suite(), "json", 100)[..3000]);
    let _ = Entry::End;
}
