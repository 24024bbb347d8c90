//! Overlapping requests: each step makes a token for each decoding request, and reads a part of the prompts of the others.

use engine_kit::{Flow, Job, Slots, Tokens};
use protocol::Failed;

use super::LoadedModel;
use super::course::{self, Course};
use super::decoder::Decoder;
use super::step::Pace;

impl<D: Decoder> Slots for LoadedModel<D> {
    fn admit(&mut self, slot: usize, job: &Job) -> Result<(), Failed> {
        let courses = self.courses(job)?;
        self.admitted.extend(courses.into_iter().enumerate().map(|(place, course)| (slot, place, course)));
        Ok(())
    }

    /// Runs one step. A long prompt is read a part at a time, and its request makes no token before the end of the prompt.
    fn step(&mut self, tokens: &mut [Option<Tokens>]) -> Result<(), Failed> {
        let mut places = Vec::with_capacity(self.admitted.len());
        let mut under_way = Vec::with_capacity(self.admitted.len());
        for (slot, place, course) in self.admitted.iter_mut().filter(|(.., course)| !course.is_done()) {
            places.push((*slot, *place));
            under_way.push(course);
        }
        let take = &mut |which: usize, id: Result<u32, Failed>| {
            let (slot, place) = places[which];
            let Some(tokens) = &mut tokens[slot] else { return false };
            match id {
                Ok(id) => tokens.push(place, id) == Flow::More,
                Err(failed) => {
                    tokens.fail(failed);
                    false
                }
            }
        };
        course::advance(&mut self.decoder, &mut under_way, Pace::Shared, &mut self.found, take);
        Ok(())
    }

    fn leave(&mut self, slot: usize) {
        let (gone, stay) =
            std::mem::take(&mut self.admitted).into_iter().partition(|(taken, ..)| *taken == slot);
        self.admitted = stay;
        let gone: Vec<(usize, usize, Course<D::Sequence>)> = gone;
        gone.into_iter().for_each(|(.., course)| self.keep(course.into_sequence()));
    }
}
