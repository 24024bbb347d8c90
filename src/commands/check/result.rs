//! The result of a check: why it did not pass, its evidence, and the number of each result.

/// The reason why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Not {
    /// Optional, and not claimed by this engine: no fault.
    Absent(String),
    /// A breach of the protocol.
    Wrong(String),
    /// Not checked, because an earlier step failed.
    Unreached(String),
}

/// The number of checks with each result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u32,
    pub absent: u32,
    pub wrong: u32,
    pub unreached: u32,
}

impl Counts {
    pub fn all(&self) -> u32 {
        self.passed + self.absent + self.wrong + self.unreached
    }

    pub fn add(&mut self, result: &Result<(), Not>) {
        *match result {
            Ok(()) => &mut self.passed,
            Err(Not::Absent(_)) => &mut self.absent,
            Err(Not::Wrong(_)) => &mut self.wrong,
            Err(Not::Unreached(_)) => &mut self.unreached,
        } += 1;
    }
}

/// The evidence of a result.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    pub sent: Vec<u8>,
    /// Empty without a line from the engine.
    pub received: Vec<u8>,
    /// The last lines of stderr of an engine that ended.
    pub stderr: Vec<String>,
}
