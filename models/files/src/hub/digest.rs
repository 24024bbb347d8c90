//! The hash that identifies a file on the hub, computed during the download.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The hub identifies large files by the SHA-256 of their bytes, and small ones by git's hash. The cache uses it as the
/// file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Digest {
    Sha256(String),
    GitBlob(String),
}

impl Digest {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::GitBlob(digits) => digits,
        }
    }

    /// The kind of hash, for a person.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "git hash",
        }
    }

    /// Begins a hash of the same kind over a file of this size; git's hash includes the size.
    pub fn begin(&self, bytes: u64) -> Running {
        match self {
            Self::Sha256(_) => Running::Sha256(Sha256::new()),
            Self::GitBlob(_) => Running::GitBlob(Sha1::new().chain_update(format!("blob {bytes}\0"))),
        }
    }
}

pub enum Running {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Running {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::GitBlob(sum) => sum.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(sum) => Digest::Sha256(digits(&sum.finalize())),
            Self::GitBlob(sum) => Digest::GitBlob(digits(&sum.finalize())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sums_are_the_published_ones() {
        let of = |kind: Digest, text: &[u8]| {
            let mut sum = kind.begin(text.len() as u64);
            text.chunks(2).for_each(|part| sum.update(part));
            sum.finish()
        };
        // `printf hello | sha256sum`, `printf hello | git hash-object --stdin`
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(of(Digest::Sha256(String::new()), b"hello"), Digest::Sha256(sha256.into()));
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        assert_eq!(of(Digest::GitBlob(String::new()), b"hello"), Digest::GitBlob(git.into()));
    }
}
