//! Tiles of Intel's matrix unit.
