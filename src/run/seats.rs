//! The members of a memory group: all resident, one running.

use super::launch::Launched;

/// A configuration's slot. It is empty if its engine has died or was not started yet.
pub(super) struct Seat {
    pub configuration: usize,
    pub launched: Option<Launched>,
}

#[derive(Default)]
pub(super) struct Seats {
    pub seats: Vec<Seat>,
}

impl Seats {
    pub fn of(configurations: &[usize]) -> Self {
        let seat = |&configuration: &usize| Seat { configuration, launched: None };
        Self { seats: configurations.iter().map(seat).collect() }
    }

    /// Pauses every engine but this one, and resumes this one. True if it was paused.
    pub async fn turn_to(&mut self, at: usize) -> bool {
        for (other, seat) in self.seats.iter_mut().enumerate() {
            if let Some(launched) = seat.launched.as_mut().filter(|it| other != at && !it.at_rest) {
                launched.talk.process.rest().await;
                launched.at_rest = true;
            }
        }
        let launched = self.seats.get_mut(at).and_then(|seat| seat.launched.as_mut());
        launched.is_some_and(|launched| {
            launched.talk.process.wake();
            std::mem::take(&mut launched.at_rest)
        })
    }
}
