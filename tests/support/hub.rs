//! A fake model hub: the part of the hub's HTTP interface that a pull uses, with one repository of given files. The hub
//! logs every request, and a test may replace any answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::Digest;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The names of the only revision.
pub const REVISIONS: [&str; 3] = ["main", "v1.0", COMMIT];

pub struct FakeHub {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    id: String,
    files: Vec<File>,
    requests: Mutex<Vec<Request>>,
    answer: Mutex<Box<Answer>>,
}

/// A test's replacement for the hub's answers. With `None`, the hub gives its own answer.
type Answer = dyn FnMut(&Request) -> Option<Reply> + Send;

#[derive(Debug, Clone)]
pub struct File {
    pub name: String,
    pub bytes: Vec<u8>,
    /// The size in the hub's list; a test may give a wrong one.
    pub listed_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub path: String,
    pub host: String,
    pub authorization: Option<String>,
    /// The first requested byte, from the header `Range`.
    pub first_byte: Option<usize>,
}

#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The number of body bytes that are sent; `None` is all.
    pub cut_after_bytes: Option<usize>,
    /// Whether the connection stays open after these bytes.
    pub stall: bool,
}

impl File {
    pub fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self { name: name.into(), listed_bytes: bytes.len() as u64, bytes }
    }

    /// Whether the file has weights, which the hub keeps in a store on another host.
    fn is_weights(&self) -> bool {
        [".safetensors", ".gguf"].iter().any(|end| self.name.ends_with(end))
    }

    /// The file's hash, which is the name of its blob in a cache.
    pub fn hash(&self) -> String {
        match self.is_weights() {
            true => hexadecimal(&sha2::Sha256::digest(&self.bytes)),
            false => {
                let head = format!("blob {}\0", self.bytes.len()).into_bytes();
                hexadecimal(&sha1::Sha1::digest([&head[..], &self.bytes].concat()))
            }
        }
    }

    fn list_entry(&self) -> Value {
        let lfs = json!({ "sha256": self.hash(), "size": self.listed_bytes, "pointerSize": 134 });
        match self.is_weights() {
            true => {
                json!({ "rfilename": self.name, "size": self.listed_bytes, "blobId": COMMIT, "lfs": lfs })
            }
            false => json!({ "rfilename": self.name, "size": self.listed_bytes, "blobId": self.hash() }),
        }
    }
}

impl Request {
    /// Whether the request is for this file's bytes, on the hub or in the store.
    pub fn is_for(&self, name: &str) -> bool {
        self.path.ends_with(&format!("/{name}"))
    }

    /// Whether the request is for the store, on another host.
    pub fn is_at_store(&self) -> bool {
        self.path.starts_with("/store/")
    }
}

impl Reply {
    pub fn of(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn bytes(body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..Self::of(200) }
    }

    pub fn with(mut self, header: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }
}

impl FakeHub {
    pub fn start(id: &str, files: Vec<File>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            id: id.into(),
            files,
            requests: Mutex::default(),
            answer: Mutex::new(Box::new(|_: &Request| None)),
        });
        let shared_with_thread = Arc::clone(&shared);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared_with_connection = Arc::clone(&shared_with_thread);
                // A client that disconnects is no failure of the hub.
                std::thread::spawn(move || drop(serve(stream, &shared_with_connection, port)));
            }
        });
        Self { port, shared }
    }

    pub fn start_with_folder(id: &str, folder: &Path) -> Self {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let file = |entry: std::fs::DirEntry| {
            File::new(entry.file_name().to_str().unwrap(), std::fs::read(entry.path()).unwrap())
        };
        Self::start(id, entries.map(file).collect())
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn file(&self, name: &str) -> &File {
        self.shared.files.iter().find(|file| file.name == name).unwrap()
    }

    /// Replaces each later answer for which `answer` returns a reply.
    pub fn answer(&self, answer: impl FnMut(&Request) -> Option<Reply> + Send + 'static) {
        *self.shared.answer.lock().unwrap() = Box::new(answer);
    }

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }
}

fn serve(stream: TcpStream, shared: &Shared, port: u16) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    let mut request = Request { path, host: String::new(), authorization: None, first_byte: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "host" => request.host = value.into(),
            "authorization" => request.authorization = Some(value.into()),
            "range" => {
                request.first_byte =
                    value.strip_prefix("bytes=").and_then(|it| it.strip_suffix('-')?.parse().ok())
            }
            _ => {}
        }
    }
    shared.requests.lock().unwrap().push(request.clone());
    let replacement = shared.answer.lock().unwrap()(&request);
    send(stream, &replacement.unwrap_or_else(|| shared.reply(&request, port)))
}

impl Shared {
    fn reply(&self, request: &Request, port: u16) -> Reply {
        let path = request.path.split('?').next().unwrap_or_default();
        if let Some(repository) = path.strip_prefix("/api/models/") {
            let (id, revision) = repository.split_once("/revision/").unwrap_or((repository, "main"));
            return match () {
                // The real hub gives this answer for a repository that does not exist or is private.
                () if id != self.id => Reply::of(401).with("X-Error-Code", "RepoNotFound"),
                () if !REVISIONS.contains(&revision) => {
                    Reply::of(404).with("X-Error-Code", "RevisionNotFound")
                }
                () => Reply::bytes(self.listing().to_string().as_bytes()),
            };
        }
        let find = |name: &str| self.files.iter().find(|file| file.name == name);
        if let Some(file) = path.strip_prefix(&format!("/{}/resolve/{COMMIT}/", self.id)).and_then(find) {
            // `localhost` is another name of this machine, so a client treats the store as another host.
            return match file.is_weights() {
                true => {
                    Reply::of(302).with("Location", format!("http://localhost:{port}/store/{}", file.name))
                }
                false => range_reply(&file.bytes, request.first_byte),
            };
        }
        match path.strip_prefix("/store/").and_then(find) {
            Some(file) => range_reply(&file.bytes, request.first_byte),
            None => Reply::of(404).with("X-Error-Code", "EntryNotFound"),
        }
    }

    fn listing(&self) -> Value {
        let siblings: Vec<_> = self.files.iter().map(File::list_entry).collect();
        json!({ "id": self.id, "sha": COMMIT, "gated": false, "siblings": siblings })
    }
}

/// The reply with a file's bytes from `first_byte` on.
pub fn range_reply(bytes: &[u8], first_byte: Option<usize>) -> Reply {
    match first_byte {
        None => Reply::bytes(bytes),
        Some(from) if from >= bytes.len() => Reply::of(416),
        Some(from) => Reply { status: 206, ..Reply::bytes(&bytes[from..]) }
            .with("Content-Range", format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len())),
    }
}

fn send(mut stream: TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", reply.status);
    head += &format!("Content-Length: {}\r\n", reply.body.len());
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(&reply.body[..reply.cut_after_bytes.unwrap_or(reply.body.len())])?;
    stream.flush()?;
    if reply.stall {
        // Waits until the client closes the connection.
        stream.read_to_end(&mut Vec::new())?;
    }
    Ok(())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
