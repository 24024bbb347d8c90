//! The hub's description of a repository: its commit, its files, their sizes and hashes. Names and sizes are untrusted; a
//! name that could lead out of a folder is refused before anything is written.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::digest::Digest;
use super::repository::{is_commit, is_hexadecimal};
use crate::text::shown;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// The path in the repository, with parts separated by `/`.
    pub name: String,
    pub bytes: u64,
    pub digest: Digest,
}

impl Listing {
    /// Parses the hub's answer to `/api/models/ID/revision/REVISION?blobs=true`.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let answer: Answer = serde_json::from_slice(json).context("not the description of a repository")?;
        ensure!(is_commit(&answer.sha), "`sha`: `{}` is no commit", shown(&answer.sha));
        let files = answer.siblings.into_iter().map(RemoteFile::of).collect::<Result<_>>()?;
        Ok(Self { commit: answer.sha, files })
    }
}

impl RemoteFile {
    fn of(sibling: Sibling) -> Result<Self> {
        let name = sibling.rfilename;
        ensure!(stays_inside(&name), "it lists the file `{}`, which leads out of its folder", shown(&name));
        let (bytes, digest) = match (sibling.lfs, sibling.size, sibling.blob_id) {
            (Some(Lfs { sha256, size }), ..) if is_hexadecimal(&sha256, 64) => (size, Digest::Sha256(sha256)),
            (None, Some(size), Some(blob)) if is_hexadecimal(&blob, 40) => (size, Digest::GitBlob(blob)),
            _ => bail!("it does not say the size and the hash of `{name}`"),
        };
        Ok(Self { name, bytes, digest })
    }
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

/// Whether the name is a relative path of plain parts. A backslash separates parts on other systems, so it is refused.
fn stays_inside(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(|it: char| it == '\\' || it.is_control())
    };
    name.len() <= 1024 && name.split('/').all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn parse(siblings: &serde_json::Value) -> Result<Listing> {
        let answer = serde_json::json!({ "id": "o/n", "sha": COMMIT, "siblings": siblings, "gated": false });
        Listing::parse(&serde_json::to_vec(&answer).unwrap())
    }

    fn small(name: &str) -> serde_json::Value {
        serde_json::json!({ "rfilename": name, "size": 7, "blobId": COMMIT })
    }

    #[test]
    fn large_files_are_known_by_their_sha_256_and_small_ones_by_their_git_hash() {
        let sha256 = "ab".repeat(32);
        let large = serde_json::json!({ "rfilename": "a/b.gguf", "size": 9, "blobId": COMMIT,
            "lfs": { "sha256": sha256, "size": 9, "pointerSize": 134 } });
        let listing = parse(&serde_json::json!([small("config.json"), large])).unwrap();
        assert_eq!(listing.commit, COMMIT);
        assert_eq!(listing.files[0].digest, Digest::GitBlob(COMMIT.into()));
        assert_eq!((listing.files[1].bytes, &listing.files[1].digest), (9, &Digest::Sha256(sha256)));
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        for name in ["../evil", "/etc/passwd", "a/../../b", "a//b", "", "a/", "..\\evil", "a\nb", "./a"] {
            let refused = parse(&serde_json::json!([small("config.json"), small(name)]));
            assert!(format!("{:#}", refused.unwrap_err()).contains("leads out"), "{name:?}");
        }
    }

    #[test]
    fn what_does_not_describe_a_repository_is_refused() {
        let no_size = serde_json::json!([{ "rfilename": "x", "blobId": COMMIT }]);
        assert!(parse(&no_size).unwrap_err().to_string().contains("size and the hash of `x`"));
        let no_hash = serde_json::json!([{ "rfilename": "x", "size": 1, "blobId": "../../x" }]);
        assert!(parse(&no_hash).is_err());
        for answer in [&b"<html>"[..], b"{}", br#"{"sha":"../..","siblings":[]}"#] {
            assert!(Listing::parse(answer).is_err());
        }
    }
}
