//! Speculation by prompt lookup: the last few ids are searched in the earlier text, and the ids that followed there are the
//! draft. A draft costs almost nothing, and one pass of the network checks all its ids.

/// The most last ids that are compared.
const LONGEST: usize = 4;
/// The fewest last ids that must match: a single id repeats too easily.
const SHORTEST: usize = 2;

/// Appends at most `most` likely next ids to `ids`, and returns their number. The longest match wins, and then the last.
pub fn draft(ids: &mut Vec<u32>, most: usize) -> usize {
    let end = ids.len();
    if most == 0 || end <= SHORTEST {
        return 0;
    }
    let (mut best, mut from) = (SHORTEST - 1, 0);
    for place in (SHORTEST..end).rev() {
        // `place` is the first id after the match.
        let alike = (1..=LONGEST.min(place)).take_while(|back| ids[place - back] == ids[end - back]).count();
        if alike > best {
            (best, from) = (alike, place);
        }
        if best == LONGEST {
            break;
        }
    }
    if from == 0 {
        return 0;
    }
    ids.extend_from_within(from..end.min(from + most));
    ids.len() - end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(ids: &[u32], most: usize) -> Vec<u32> {
        let mut longer = ids.to_vec();
        let count = draft(&mut longer, most);
        assert_eq!(longer.len(), ids.len() + count);
        longer.split_off(ids.len())
    }

    #[test]
    fn what_came_after_the_same_ids_is_drafted() {
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3], 2), [4, 5]);
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3], 100), [4, 5, 9, 2, 3]);
        assert_eq!(drafted(&[7, 7, 7], 3), [7]);
    }

    #[test]
    fn more_in_common_goes_before_later_and_later_goes_before_earlier() {
        assert_eq!(drafted(&[1, 2, 3, 10, 2, 3, 11, 1, 2, 3], 1), [10]);
        assert_eq!(drafted(&[2, 3, 10, 2, 3, 11, 5, 2, 3], 1), [11]);
    }

    #[test]
    fn nothing_is_drafted_where_nothing_is_alike_or_nothing_is_asked_for() {
        assert!(drafted(&[1, 2, 3, 4], 4).is_empty());
        assert!(drafted(&[3, 9, 3], 4).is_empty());
        assert!(drafted(&[1, 2, 1, 2], 0).is_empty());
        assert!(drafted(&[], 4).is_empty() && drafted(&[1], 4).is_empty() && drafted(&[1, 1], 4).is_empty());
    }
}
