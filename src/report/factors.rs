//! Factors. A factor is an option or a fact that may differ between rows, apart from the engine: model, version, device, dtype,
//! threads. A factor that the plan varied is a column, or part of the engine's name where the column does not fit. A fact that
//! engines report differently is a column too. The caption has all other facts.

use super::headings::{self, Heading};
use super::rows::{Dtype, Engine, Row};
use crate::machine::Device;
use crate::text::shorten;

pub struct Factor {
    pub id: FactorId,
    pub heading: Heading,
    /// The value that the engine reported.
    pub reported: fn(&Engine) -> Option<String>,
    /// The value that the plan requested; `None` where the engine chose.
    requested: fn(&Engine) -> Option<String>,
    /// Whether the engine reports the requested value.
    matches_request: fn(&str, &Engine) -> bool,
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
        heading: headings::MODEL,
        reported: |engine| Some(engine.model.clone()),
        requested: |engine| Some(engine.model.clone()),
        matches_request: |_, _| true,
    },
    Factor {
        id: FactorId::Version,
        heading: headings::VERSION,
        reported: |engine| engine.version.clone(),
        requested: |_| None,
        matches_request: |_, _| true,
    },
    Factor {
        id: FactorId::Device,
        heading: headings::DEVICE,
        reported: |engine| engine.device.as_ref().map(Device::to_string),
        requested: |engine| engine.requested.device.as_ref().map(Device::to_string),
        matches_request: |requested, engine| {
            engine.device.as_ref().is_some_and(|it| it.satisfies(&requested.into()))
        },
    },
    Factor {
        id: FactorId::Dtype,
        heading: headings::DTYPE,
        reported: |engine| engine.dtype.as_ref().map(Dtype::to_string),
        requested: |engine| engine.requested.dtype.clone(),
        matches_request: |requested, engine| {
            let is_requested =
                |it: &Dtype| it.weights == requested || it.compute.as_deref() == Some(requested);
            engine.dtype.as_ref().is_some_and(is_requested)
        },
    },
    Factor {
        id: FactorId::Threads,
        heading: headings::THREADS,
        reported: |engine| engine.threads.map(|threads| threads.to_string()),
        requested: |engine| engine.requested.threads.map(|threads| threads.to_string()),
        matches_request: |requested, engine| {
            engine.threads.is_some_and(|threads| threads.to_string() == requested)
        },
    },
];

impl Factor {
    /// Whether the plan requested several values for these engines.
    pub fn requests_differ<'a>(&self, engines: impl Iterator<Item = &'a Engine>) -> bool {
        let mut all = engines.map(self.requested);
        all.next().is_some_and(|first| all.any(|other| other != first))
    }

    pub fn reports_differ(&self, rows: &[Row]) -> bool {
        varies(rows, |row| (self.reported)(&row.engine))
    }

    /// The requested and the reported value, where the reported value does not match the request.
    pub fn mismatch(&self, engine: &Engine) -> Option<(String, String)> {
        let (requested, reported) = ((self.requested)(engine)?, (self.reported)(engine)?);
        (!(self.matches_request)(&requested, engine)).then_some((requested, reported))
    }

    pub fn cell_of_measured_row(&self, engine: &Engine, max_width: usize) -> String {
        let short = |value: String| shorten(&value, max_width);
        if let Some((requested, reported)) = self.mismatch(engine) {
            return format!("{} (requested {})", short(reported), short(requested));
        }
        match ((self.reported)(engine), (self.requested)(engine)) {
            (Some(reported), _) => short(reported),
            (None, Some(requested)) => format!("{}?", short(requested)),
            (None, None) => "?".into(),
        }
    }

    pub fn cell_of_failed_row(&self, engine: &Engine, max_width: usize) -> String {
        match (self.reported)(engine) {
            Some(_) => self.cell_of_measured_row(engine, max_width),
            None => shorten(&(self.requested)(engine).unwrap_or_default(), max_width),
        }
    }
}

pub fn varies<T: PartialEq>(rows: &[Row], value_of: impl Fn(&Row) -> T) -> bool {
    rows.iter().skip(1).any(|row| value_of(row) != value_of(&rows[0]))
}
