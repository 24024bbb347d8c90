//! What rows may differ in beside their engine. What the plan varied is a column that names the row, and says what was
//! asked for where nothing was stated; what engines state differently on their own is a column too; the rest is said once,
//! in the caption.

use super::{Dtype, Engine, Report, Row};
use crate::machine::Device;
use crate::text::shorten;

pub struct Factor {
    pub id: FactorId,
    pub title: &'static str,
    /// As the engine stated it.
    pub stated: fn(&Engine) -> Option<String>,
    /// As the plan asked for it; `None` where it left that to the engine.
    asked: fn(&Engine) -> Option<String>,
    /// Whether the engine states what was asked for.
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
    /// The plan asked for several values of it, also where none of the rows of one was measured.
    pub fn is_swept(&self, report: &Report) -> bool {
        let rows = report.rows.iter().map(|row| &row.engine);
        let mut all = rows.chain(report.failed.iter().map(|failed| &failed.engine)).map(self.asked);
        all.next().is_some_and(|first| all.any(|other| other != first))
    }

    /// The rows differ in what was stated.
    pub fn differs(&self, report: &Report) -> bool {
        varies(&report.rows, |row| (self.stated)(&row.engine))
    }

    /// The one value of all rows.
    pub fn common(&self, report: &Report) -> Option<String> {
        let first = report.rows.first()?;
        (self.stated)(&first.engine).filter(|_| !self.is_swept(report) && !self.differs(report))
    }

    /// What a row that was measured says.
    pub fn measured(&self, engine: &Engine, longest: usize) -> String {
        let short = |value: String| shorten(&value, longest);
        match ((self.stated)(engine), (self.asked)(engine)) {
            (Some(stated), Some(asked)) if !(self.same)(&asked, engine) => {
                format!("{} (asked {})", short(stated), short(asked))
            }
            (Some(stated), _) => short(stated),
            (None, Some(asked)) => format!("{}?", short(asked)),
            (None, None) => "?".into(),
        }
    }

    /// What a row that failed says.
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
