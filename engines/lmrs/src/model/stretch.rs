//! The size of the next part of a prompt.

use super::decoder::FEW;

/// The fewest rows of a long prompt that are worth a pass.
pub const LEAST: usize = 4 * FEW;

/// Rows of the waiting prompt that go now, if `most` rows have room; never fewer than `LEAST`. The rest is empty or longer than
/// `FEW`, so all rows of a long prompt are computed in the same way, wherever it is cut.
pub fn stretch(waiting: usize, most: usize) -> usize {
    match waiting.saturating_sub(most) {
        0 => waiting,
        1..=FEW => most - 2 * FEW,
        _ => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_has_no_short_piece_and_no_piece_is_longer_than_there_is_room() {
        for most in [LEAST, 100, 128, 256] {
            for rows in 1..2000 {
                let (mut waiting, mut pieces) = (rows, Vec::new());
                while waiting > 0 {
                    pieces.push(stretch(waiting, most));
                    waiting -= pieces[pieces.len() - 1];
                }
                assert!(pieces.iter().all(|piece| *piece <= most), "{rows} of {most}: {pieces:?}");
                assert!(
                    rows <= FEW || pieces.iter().all(|piece| *piece > FEW),
                    "{rows} of {most}: {pieces:?}"
                );
            }
        }
    }
}
