//! The account of a case's wall time: the time from the start of the engine to one complete answer, in parts that add up
//! to it exactly. The orchestrator's clock gives the total and the part `spawn`. The times that the engine reports give the
//! other parts, and the remainder is unattributed.

use protocol::Phase;
use serde::{Serialize, Serializer};

use super::headings::Heading;
use crate::analysis::metric::Observation;
use crate::analysis::values::LaunchRequests;
use crate::plan::{Mode, Plan};
use crate::record::Sample;

/// The parts, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimePart {
    /// From the start of the process until it answered `hello`.
    Spawn,
    Import,
    Weights,
    Compile,
    /// Load phases with any other name.
    Other,
    /// From just before tokenising until the first token.
    FirstToken,
    /// From the first token to the last.
    SteadyState,
}

pub const PARTS: [TimePart; 7] = [
    TimePart::Spawn,
    TimePart::Import,
    TimePart::Weights,
    TimePart::Compile,
    TimePart::Other,
    TimePart::FirstToken,
    TimePart::SteadyState,
];

/// Means over launches and over measured requests, in whole nanoseconds. JSON has these names: add, never rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WallTime {
    pub total_ns: u64,
    /// The parts in the order of `PARTS`. A part is `None` where no launch and no request reported it.
    #[serde(rename = "parts_ns", serialize_with = "by_name")]
    pub parts: [Option<u64>; PARTS.len()],
    /// The remainder of the total: never negative.
    pub unattributed_ns: u64,
    /// The load phases with the engine's own names.
    pub phases: Vec<Phase>,
    /// The number of launches and requests whose claims exceeded the elapsed time. Their parts were shortened in proportion.
    pub shortened: usize,
    pub launches: usize,
    pub requests: usize,
}

impl TimePart {
    pub fn name(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::Import => "import",
            Self::Weights => "weights",
            Self::Compile => "compile",
            Self::Other => "other_phases",
            Self::FirstToken => "first_token",
            Self::SteadyState => "steady_state",
        }
    }

    /// The heading of its column.
    pub fn heading(self) -> Heading {
        let (title, about) = match self {
            Self::Spawn => ("spawn", "from the start of the process until it answered `hello`."),
            Self::Import => ("import", "load phases of imports, as the engine reports them."),
            Self::Weights => ("weights", "load phases of the weights, as the engine reports them."),
            Self::Compile => ("compile", "load phases of compiling, as the engine reports them."),
            Self::Other => ("other phases", "load phases with any other name."),
            Self::FirstToken => ("first token", "from just before tokenising until the first token."),
            Self::SteadyState => ("steady state", "from the first token to the last."),
        };
        Heading { title, about }
    }

    /// Whether the part belongs to a request; otherwise it belongs to a launch.
    fn is_of_request(self) -> bool {
        matches!(self, Self::FirstToken | Self::SteadyState)
    }

    /// The part of a load phase, by its name.
    fn of_phase(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let contains_any = |words: &[&str]| words.iter().any(|word| name.contains(word));
        match () {
            () if contains_any(&["import"]) => Self::Import,
            () if contains_any(&["weight"]) => Self::Weights,
            () if contains_any(&["compil", "kernel", "jit", "graph", "autotun"]) => Self::Compile,
            () => Self::Other,
        }
    }
}

impl WallTime {
    /// The account, or `None` where no launch has a measured request.
    pub fn of(plan: &Plan, launches: &[LaunchRequests]) -> Option<Self> {
        let mut sums = Sums::default();
        for requests in launches {
            let launch_ns = sums.add_launch(requests);
            for sample in &requests.measured {
                sums.add_request(plan, requests, sample, launch_ns);
            }
        }
        sums.means()
    }

    /// The account for programs: every part, the remainder and the total by name, each with the number of values of its mean.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, Option<u64>, usize)> {
        let parts = PARTS.into_iter().zip(self.parts).map(|(part, ns)| {
            (part.name(), ns, if part.is_of_request() { self.requests } else { self.launches })
        });
        let totals = [("unattributed", self.unattributed_ns), ("total", self.total_ns)];
        parts.chain(totals.map(|(name, ns)| (name, Some(ns), self.requests)))
    }

    pub fn part(&self, part: TimePart) -> Option<u64> {
        self.parts[part as usize]
    }
}

/// The parts with their names, for JSON.
fn by_name<S: Serializer>(parts: &[Option<u64>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(PARTS.iter().map(|part| part.name()).zip(parts))
}

#[derive(Default)]
struct Sums {
    launches: u64,
    requests: u64,
    launch_ns: u128,
    request_ns: u128,
    parts: [Option<u128>; PARTS.len()],
    phases: Vec<(String, u128)>,
    shortened: usize,
}

impl Sums {
    /// Adds a launch, and returns the time from the start of the process until the engine was ready. An engine that knows only
    /// `generate` loads within its first request: the part of that request that the engine does not count belongs to the launch.
    fn add_launch(&mut self, requests: &LaunchRequests) -> u64 {
        let LaunchRequests { launch, first_of_launch: first, .. } = requests;
        let launch_ns = launch.loaded_ns.unwrap_or_else(|| {
            first.answered_ns.saturating_sub(first.iteration.end_ns.saturating_sub(first.iteration.start_ns))
        });
        self.launches += 1;
        self.launch_ns += u128::from(launch_ns);
        let phases: &[Phase] = launch.loaded.as_ref().map_or(&[], |loaded| &loaded.phases);
        let mut claims: Vec<u64> = launch.hello_ns.into_iter().collect();
        claims.extend(phases.iter().map(|phase| phase.ns));
        self.shortened += usize::from(scale_down(&mut claims, launch_ns));
        let spawn_ns = launch.hello_ns.map(|_| claims.remove(0));
        self.add_claim(TimePart::Spawn, spawn_ns);
        for (phase, ns) in phases.iter().zip(claims) {
            self.add_claim(TimePart::of_phase(&phase.name), Some(ns));
            match self.phases.iter_mut().find(|(name, _)| *name == phase.name) {
                Some((_, sum)) => *sum += u128::from(ns),
                None => self.phases.push((phase.name.clone(), u128::from(ns))),
            }
        }
        launch_ns
    }

    fn add_request(&mut self, plan: &Plan, requests: &LaunchRequests, sample: &Sample, launch_ns: u64) {
        // A request that was sent before the engine was ready waited for the launch, and that time is counted already.
        let is_first = std::ptr::eq(sample, requests.first_of_launch);
        let waited = plan.mode == Mode::OneShot || (requests.launch.loaded_ns.is_none() && is_first);
        let from_ns = if waited { launch_ns } else { sample.sent_ns };
        let request_ns = sample.answered_ns.saturating_sub(from_ns);
        self.requests += 1;
        self.request_ns += u128::from(request_ns);
        let kind = plan.cases[sample.case].workload.kind;
        let observed = Observation::without_record(sample, requests.launch, kind, plan.mode);
        let Some((first_ns, last_ns)) = observed.first_and_last_ns() else { return };
        let mut claims =
            [first_ns.saturating_sub(sample.iteration.start_ns), last_ns.saturating_sub(first_ns)];
        self.shortened += usize::from(scale_down(&mut claims, request_ns));
        self.add_claim(TimePart::FirstToken, Some(claims[0]));
        self.add_claim(TimePart::SteadyState, Some(claims[1]));
    }

    fn add_claim(&mut self, part: TimePart, ns: Option<u64>) {
        if let Some(ns) = ns {
            *self.parts[part as usize].get_or_insert(0) += u128::from(ns);
        }
    }

    /// Each mean is rounded down to a nanosecond. The remainder is unattributed, so that all parts add up.
    fn means(self) -> Option<WallTime> {
        let (launches, requests) = (u128::from(self.launches), u128::from(self.requests));
        let mean = |sum: u128, count: u128| u64::try_from(sum / count.max(1)).unwrap_or(u64::MAX);
        let mut parts = [None; PARTS.len()];
        for ((part_mean, sum), part) in parts.iter_mut().zip(self.parts).zip(PARTS) {
            *part_mean = sum.map(|sum| mean(sum, if part.is_of_request() { requests } else { launches }));
        }
        let total_ns = mean(self.launch_ns, launches).saturating_add(mean(self.request_ns, requests));
        let claimed = parts.iter().flatten().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        (requests > 0).then(|| WallTime {
            total_ns,
            parts,
            unattributed_ns: total_ns.saturating_sub(claimed),
            phases: self
                .phases
                .into_iter()
                .map(|(name, sum)| Phase { name, ns: mean(sum, launches) })
                .collect(),
            shortened: self.shortened,
            launches: self.launches as usize,
            requests: self.requests as usize,
        })
    }
}

/// Scales claims down in proportion where they exceed the available time. Returns whether it changed them.
fn scale_down(claims: &mut [u64], available: u64) -> bool {
    let sum: u128 = claims.iter().map(|&ns| u128::from(ns)).sum();
    if sum <= u128::from(available) {
        return false;
    }
    for ns in claims {
        *ns = (u128::from(*ns) * u128::from(available) / sum) as u64;
    }
    true
}

#[cfg(test)]
mod tests;
