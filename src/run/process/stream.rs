//! Reading a pipe in a separate thread.

use std::io::{ErrorKind, Read};

/// Reads the available bytes, and waits if there are none. `None` is the end of the stream or a permanent error. A read that a
/// signal interrupts is repeated.
pub fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return None,
            Ok(read) => return Some(read),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Gives its parts one by one, each after a read that a signal interrupts.
    pub struct Interrupted {
        pub parts: Vec<&'static [u8]>,
        pub was_interrupted: bool,
    }

    impl Read for Interrupted {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.was_interrupted = !self.was_interrupted;
            if self.was_interrupted {
                return Err(ErrorKind::Interrupted.into());
            }
            if self.parts.is_empty() {
                return Ok(0);
            }
            let part = self.parts.remove(0);
            buffer[..part.len()].copy_from_slice(part);
            Ok(part.len())
        }
    }

    #[test]
    fn a_signal_is_not_the_end_of_a_stream() {
        let mut stream = Interrupted { parts: vec![b"one", b"two"], was_interrupted: false };
        let mut buffer = [0; 8];
        let mut all: Vec<u8> = Vec::new();
        while let Some(read) = read_some(&mut stream, &mut buffer) {
            all.extend(&buffer[..read]);
        }
        assert_eq!(all, b"onetwo");
    }
}
