//! Processors without code of their own.

use super::{Group, Place, unpack_plainly};
use crate::kernels::Level;

pub fn unpack<const ROWS: usize>(
    _: Level,
    heads: [&[u8]; ROWS],
    group: &Group,
    first: usize,
    into: &mut Place,
) {
    unpack_plainly(heads, group, first, into);
}
