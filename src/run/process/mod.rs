//! The only code that talks to engine processes: how one is started and ended, what is said, what can go wrong.

mod conversation;
mod error;
mod keeper;
mod leader;
mod library;
mod process;
mod stream;

pub use conversation::{Answer, Conversation, Deadlines, Hello, STRAY_LINES};
pub use error::{Cause, Fault, Stage};
pub use keeper::{Keeper, keep};
pub use process::{Launching, Line, Process};
