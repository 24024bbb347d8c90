//! Factors: the options and facts that may differ between rows, apart from the engine. A factor that the plan varied is a
//! column and part of the row's name. A fact that engines state differently is a column too. The caption has the others.

use super::rows::{Dtype, Engine, Row};
use super::run_report::Report;
use crate::machine::Device;
use crate::text::shorten;

pub struct Factor {
    pub id: FactorId,
    pub title: &'static str,
    /// The value that the engine stated.
    pub stated: fn(&Engine) -> Option<String>,
    /// The value that the plan requested; `None` where the engine chose.
    asked: fn(&Engine) -> Option<String>,
    /// Whether the engine states the requested value.
    same: fn(&str, &Engine) -> bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactorId {
    Model,
    Version,
    Device,
    Dtype,
    Threads,
}

pub const FACTORS: [Factor; 5] = [
    Factor {
        id: FactorId::Model,
        title: "model",
        stated: |engine| Some(engine.model.clone()),
        asked: |engine| Some(engine.model.clone()),
        same: |asked, engine| asked == engine.model,
    },
    Factor {
        id: FactorId::Version,
        title: "version",
        stated: |engine| engine.version.clone(),
        asked: |_| None,
        same: |asked, engine| engine.version.as_deref() == Some(asked),
    },
    Factor {
        id: FactorId::Device,
        title: "device",
        stated: |engine| engine.device.as_ref().map(Device::to_string),
        asked: |engine| engine.asked.device.as_ref().map(Device::to_string),
        same: |asked, engine| engine.device.as_ref().is_some_and(|it| it.satisfies(&asked.into())),
    },
    Factor {
        id: FactorId::Dtype,
        title: "dtype",
        stated: |engine| engine.dtype.as_ref().map(Dtype::to_string),
        asked: |engine| engine.asked.dtype.clone(),
        same: |asked, engine| {
            let is_asked = |it: &Dtype| it.weights == asked || it.compute.as_deref() == Some(asked);
            engine.dtype.as_ref().is_some_and(is_asked)
        },
    },
    Factor {
        id: FactorId::Threads,
        title: "threads",
        stated: |engine| engine.threads.map(|threads| threads.to_string()),
        asked: |engine| engine.asked.threads.map(|threads| threads.to_string()),
        same: |asked, engine| engine.threads.is_some_and(|threads| threads.to_string() == asked),
    },
];

impl Factor {
    /// Whether the plan requested several values, including values that no row was measured with.
    pub fn is_swept(&self, report: &Report) -> bool {
        let rows = report.rows.iter().map(|row| &row.engine);
        let mut all = rows.chain(report.failed.iter().map(|failed| &failed.engine)).map(self.asked);
        all.next().is_some_and(|first| all.any(|other| other != first))
    }

    /// Whether the stated values differ.
    pub fn differs(&self, report: &Report) -> bool {
        varies(&report.rows, |row| (self.stated)(&row.engine))
    }

    /// The value that all rows share.
    pub fn common(&self, report: &Report) -> Option<String> {
        let first = report.rows.first()?;
        (self.stated)(&first.engine).filter(|_| !self.is_swept(report) && !self.differs(report))
    }

    /// The cell of a measured row.
    pub fn measured(&self, engine: &Engine, longest: usize) -> String {
        let short = |value: String| shorten(&value, longest);
        match ((self.stated)(engine), (self.asked)(engine)) {
            (Some(stated), Some(asked)) if !(self.same)(&asked, engine) => {
                format!("{} (requested {})", short(stated), short(asked))
            }
            (Some(stated), _) => short(stated),
            (None, Some(asked)) => format!("{}?", short(asked)),
            (None, None) => "?".into(),
        }
    }

    /// The cell of a failed row.
    pub fn failed(&self, engine: &Engine, longest: usize) -> String {
        match (self.stated)(engine) {
            Some(_) => self.measured(engine, longest),
            None => shorten(&(self.asked)(engine).unwrap_or_default(), longest),
        }
    }
}

pub fn varies<T: PartialEq>(rows: &[Row], of: impl Fn(&Row) -> T) -> bool {
    rows.iter().skip(1).any(|row| of(row) != of(&rows[0]))
}
