//! The parts of a load: the kit times them and reports them to the orchestrator as they happen.

use std::time::Instant;

use protocol::{Message, Phase, Progress};

use crate::Output;

/// Times the parts of a load. The start of each extends the orchestrator's deadline.
pub struct Phases {
    output: Option<Output>,
    running: Option<(String, Instant)>,
    done: Vec<Phase>,
}

impl Phases {
    /// Without an output it only times: a load that a `generate` caused has one answer and no progress messages.
    pub fn new(output: Option<Output>) -> Self {
        Self { output, running: None, done: Vec::new() }
    }

    /// Times `work` under a name.
    pub fn phase<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        self.begin(name);
        let result = work();
        self.end();
        result
    }

    /// Begins a phase, and ends the one before it.
    pub fn begin(&mut self, name: &str) {
        self.end();
        self.tell(Progress { phase: name.into(), fraction: None, note: None });
        self.running = Some((name.into(), Instant::now()));
    }

    /// Ends the running phase, if there is one.
    pub fn end(&mut self) {
        if let Some((name, began)) = self.running.take() {
            let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.done.push(Phase { name, ns });
        }
    }

    /// Reports the progress of the running phase, from 0 to 1, and extends the deadline.
    pub fn progress(&self, fraction: f64, note: Option<String>) {
        let phase = self.running.as_ref().map_or_else(String::new, |(name, _)| name.clone());
        self.tell(Progress { phase, fraction: Some(fraction), note });
    }

    pub(crate) fn finish(mut self) -> Vec<Phase> {
        self.end();
        self.done
    }

    fn tell(&self, progress: Progress) {
        if let Some(output) = &self.output {
            output.send(&Message::Progress(progress));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_where_the_next_begins_and_all_are_told_in_order() {
        let (mut told, writer) = std::io::pipe().unwrap();
        let mut phases = Phases::new(Some(Output::new(writer)));
        phases.begin("read");
        phases.progress(0.5, Some("half".into()));
        assert_eq!(phases.phase("copy", || 7), 7);
        let done = phases.finish();
        assert_eq!(done.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), ["read", "copy"]);
        let mut lines = String::new();
        std::io::Read::read_to_string(&mut told, &mut lines).unwrap();
        let expected = [
            r#"{"type":"progress","phase":"read"}"#,
            r#"{"type":"progress","phase":"read","fraction":0.5,"note":"half"}"#,
            r#"{"type":"progress","phase":"copy"}"#,
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    }
}
