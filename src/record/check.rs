//! Checks the indices of a record once when it is read: later code uses them without checks.
//!
//! A failure may name a launch without an entry: its process never loaded. A metric may be known only to a later version:
//! `analysis::metric::unknown` reports it, and the record is still read.

use std::collections::HashMap;

use super::entry::{Entry, Header};
use crate::plan::Role;

/// The indices that are valid after the entries read so far.
pub struct Known {
    configurations: usize,
    /// The configuration of each case.
    cases: Vec<usize>,
    /// The configuration of each launch.
    launches: HashMap<u32, usize>,
    /// The model of each configuration.
    models: Vec<String>,
    /// The number of held-out texts of each model.
    texts: HashMap<String, usize>,
}

impl Known {
    /// Checks the header's own indices; `Err` says what is wrong with them.
    pub fn of(header: &Header) -> Result<Self, String> {
        let plan = &header.plan;
        let known = Self {
            configurations: plan.configurations.len(),
            cases: plan.cases.iter().map(|it| it.configuration).collect(),
            launches: HashMap::new(),
            models: plan.configurations.iter().map(|it| it.model.path.clone()).collect(),
            texts: HashMap::new(),
        };
        for (index, case) in plan.cases.iter().enumerate() {
            known.configuration(&format!("plan.cases[{index}].configuration"), case.configuration)?;
        }
        for (index, it) in plan.configurations.iter().enumerate() {
            if let Some(Role::Twin { of } | Role::Baseline { of }) = it.role {
                known.configuration(&format!("plan.configurations[{index}].role.of"), of)?;
            }
        }
        for (index, floor) in header.noise_floors.iter().enumerate() {
            known.configuration(&format!("floors[{index}].configuration"), floor.configuration)?;
        }
        Ok(known)
    }

    /// Checks the indices of the next entry; later entries may then refer to it.
    pub fn take(&mut self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::Launch(it) => {
                self.configuration("configuration", it.configuration)?;
                if self.launches.insert(it.launch, it.configuration).is_some() {
                    return Err(format!("`launch` is {}, and an earlier launch has that number", it.launch));
                }
            }
            Entry::Sample(it) => self.case_in_launch(it.case, it.launch)?,
            Entry::WarmUp(it) => self.case_in_launch(it.case, it.launch)?,
            Entry::Pass(it) => self.case_in_launch(it.case, it.launch)?,
            Entry::Failure(it) => {
                self.configuration("configuration", it.configuration)?;
                it.case.map_or(Ok(()), |case| self.case(case))?;
            }
            Entry::Warning(it) => self.configuration_or_none(it.configuration)?,
            Entry::NotChecked(it) => self.configuration_or_none(it.configuration)?,
            Entry::HeldOut(it) => {
                self.texts.insert(it.model.clone(), it.sequences.len());
            }
            Entry::Scored(it) => {
                self.configuration("configuration", it.configuration)?;
                self.launch(it.launch)?;
                let texts = self.texts.get(&self.models[it.configuration]).copied().unwrap_or(0);
                index("sequence", it.sequence, texts, "held-out texts of its model")?;
            }
            Entry::Continued(it) => {
                self.configuration("configuration", it.configuration)?;
                self.launch(it.launch)?;
            }
            Entry::ReferenceToken(it) => {
                self.configuration("verifier", it.verifier)?;
                self.case_in_launch(it.case, it.launch)?;
            }
            Entry::Header(_)
            | Entry::Closed(_)
            | Entry::StoredAnswers(_)
            | Entry::Limits(_)
            | Entry::Idle(_)
            | Entry::Overhead(_)
            | Entry::End(_) => {}
        }
        Ok(())
    }

    fn configuration(&self, field: &str, it: usize) -> Result<(), String> {
        index(field, it, self.configurations, "configurations in the plan")
    }

    fn configuration_or_none(&self, it: Option<usize>) -> Result<(), String> {
        it.map_or(Ok(()), |it| self.configuration("configuration", it))
    }

    fn case(&self, it: usize) -> Result<(), String> {
        index("case", it, self.cases.len(), "cases in the plan")
    }

    fn launch(&self, it: u32) -> Result<(), String> {
        let known = self.launches.contains_key(&it);
        if known { Ok(()) } else { Err(format!("`launch` is {it}, and no launch before it has that number")) }
    }

    /// A case is measured in launches of its own configuration alone.
    fn case_in_launch(&self, case: usize, launch: u32) -> Result<(), String> {
        self.case(case)?;
        self.launch(launch)?;
        let (planned, launched) = (self.cases[case], self.launches[&launch]);
        match planned == launched {
            true => Ok(()),
            false => Err(format!(
                "`case` {case} is of configuration {planned}, and `launch` {launch} of configuration {launched}"
            )),
        }
    }
}

fn index(field: &str, it: usize, count: usize, of: &str) -> Result<(), String> {
    if it < count { Ok(()) } else { Err(format!("`{field}` is {it}, and there are {count} {of}")) }
}
