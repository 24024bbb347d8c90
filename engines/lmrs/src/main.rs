//! `lmrs`: reads requests on stdin, writes facts on stdout.

fn main() {}
