//! The only code that talks to engine processes: start and end, requests and answers, failures.

mod child;
mod containment;
mod conversation;
mod error;
mod handles;
mod keeper;
mod library;
mod overlapping;
mod spawn;
mod start_error;
mod variables;

pub use crate::record::Stage;
pub use child::{Launching, Line, Process};
pub use containment::end_descendants;
pub use conversation::{
    Answer, Conversation, Deadlines, FactsAnswer, Hello, LINE_TOO_LONG, MAX_STRAY_LINES, describe_exit,
};
pub use error::{Cause, EngineFailure, LaunchError, limited};
pub use keeper::{Keeper, keep};
pub use overlapping::{Served, Wishes, serve};
pub use spawn::KeeperHandle;
pub use start_error::why_not_started;
pub use variables::PassedVariables;
