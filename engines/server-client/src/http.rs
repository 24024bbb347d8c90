//! HTTP/1.1 over connections that stay open: one request, and its answer as its bytes arrive. A client of our own, because a
//! cancel must close a connection at once, and the time of a token is that of its bytes.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The time for a connection to the server.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// A connection that was idle for this long is not used again. Some servers close a connection after 5 s.
const MAX_IDLE_TIME: Duration = Duration::from_secs(4);
/// The longest head of an answer, and the longest line in it.
const MAX_HEAD_BYTES: u64 = 1 << 16;

/// The address in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host and the port.
    pub authority: String,
    /// The path before that of each request: empty, or with a slash at its start and none at its end.
    prefix: String,
}

impl Address {
    /// The address of `http://HOST[:PORT][/PATH]`. The API's own tools take a URL that ends with `/v1`.
    pub fn of(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://")?.trim_end_matches('/');
        let rest = rest.strip_suffix("/v1").unwrap_or(rest);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_string() } else { format!("{authority}:80") };
        let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
        (!authority.starts_with(':')).then_some(Self { authority, prefix })
    }

    /// The address of a port of this machine.
    pub fn local(port: u16) -> Self {
        Self { authority: format!("127.0.0.1:{port}"), prefix: String::new() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{}{path}", self.authority, self.prefix)
    }
}

/// An open connection without a running request.
pub struct Connection {
    reader: BufReader<TcpStream>,
    idle_since: Instant,
}

impl Connection {
    pub fn open(address: &Address) -> Result<Self> {
        let mut last = Error::new(ErrorKind::AddrNotAvailable, "the host has no address");
        for address in address.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let reader = BufReader::new(stream);
                    return Ok(Self { reader, idle_since: Instant::now() });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether the connection is fresh enough for another request.
    pub fn is_fresh(&self) -> bool {
        self.idle_since.elapsed() < MAX_IDLE_TIME
    }

    /// A handle that ends the running request.
    pub fn handle(&self) -> Result<TcpStream> {
        self.reader.get_ref().try_clone()
    }

    /// Sends a request, and reads the head of its answer. `limit` is the time for each read; without it, a read waits.
    pub fn send(mut self, request: &[u8], limit: Option<Duration>) -> Result<Answer> {
        self.reader.get_ref().set_read_timeout(limit)?;
        self.reader.get_mut().write_all(request)?;
        let head = Head::read(&mut self.reader)?;
        Ok(Answer {
            status: head.status,
            reason: head.reason,
            body: Body::new(self, head.length, head.closes),
        })
    }
}

/// The bytes of a request with a body in JSON, or without a body.
pub fn request(address: &Address, path: &str, authorization: Option<&str>, json: Option<&str>) -> Vec<u8> {
    let Address { authority, prefix } = address;
    let method = if json.is_some() { "POST" } else { "GET" };
    let mut head = format!("{method} {prefix}{path} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\n");
    if let Some(authorization) = authorization {
        head += &format!("Authorization: {authorization}\r\n");
    }
    if let Some(json) = json {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", json.len());
    }
    [head.as_bytes(), b"\r\n", json.unwrap_or_default().as_bytes()].concat()
}

/// Ends the request of a connection. Its reader gets an error or the end of the answer.
pub fn close(handle: &TcpStream) {
    // The server may have closed the connection already.
    let _ = handle.shutdown(Shutdown::Both);
}

/// An answer whose body is being read.
pub struct Answer {
    pub status: u16,
    /// The words beside the status.
    pub reason: String,
    pub body: Body,
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    Chunked,
    UntilClosed,
}

struct Head {
    status: u16,
    reason: String,
    length: Length,
    /// Whether the server closes the connection after the answer.
    closes: bool,
}

impl Head {
    fn read(reader: &mut impl BufRead) -> Result<Self> {
        let mut reader = reader.take(MAX_HEAD_BYTES);
        let first = read_line(&mut reader)?;
        let mut words = first.splitn(3, ' ');
        let version = words.next().unwrap_or_default();
        let status = words.next().and_then(|status| status.parse().ok());
        let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else {
            return Err(invalid("the answer is not HTTP/1.1"));
        };
        let reason = words.next().unwrap_or_default().to_string();
        let (mut length, mut closes) = (Length::UntilClosed, version == "HTTP/1.0");
        loop {
            let line = read_line(&mut reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| invalid("a header without a colon"))?;
            let value = value.trim().to_ascii_lowercase();
            match name.to_ascii_lowercase().as_str() {
                "content-length" if length != Length::Chunked => {
                    length = Length::Bytes(value.parse().map_err(|_| invalid("an invalid content-length"))?);
                }
                "transfer-encoding" if value.contains("chunked") => length = Length::Chunked,
                "connection" => closes = value.contains("close"),
                _ => {}
            }
        }
        if matches!(status, 204 | 304) {
            length = Length::Bytes(0);
        }
        Ok(Self { status, reason, length, closes })
    }
}

/// A body, read as its bytes arrive.
pub struct Body {
    connection: Connection,
    length: Length,
    /// The bytes left of the body, or of the current chunk.
    left: u64,
    closes: bool,
    is_over: bool,
}

impl Body {
    fn new(connection: Connection, length: Length, closes: bool) -> Self {
        let left = if let Length::Bytes(bytes) = length { bytes } else { 0 };
        let closes = closes || length == Length::UntilClosed;
        Self { connection, length, left, closes, is_over: length == Length::Bytes(0) }
    }

    /// The connection for another request, if the body was read to its end and the server keeps the connection.
    pub fn into_connection(self) -> Option<Connection> {
        let Self { connection, closes, is_over, .. } = self;
        (is_over && !closes).then(|| Connection { idle_since: Instant::now(), ..connection })
    }

    /// Reads the size of the next chunk. The last chunk has no bytes; headers may follow it.
    fn begin_chunk(&mut self) -> Result<()> {
        let reader = &mut self.connection.reader;
        let line = read_line(&mut reader.take(MAX_HEAD_BYTES))?;
        let size = line.split(';').next().unwrap_or_default().trim();
        self.left = u64::from_str_radix(size, 16).map_err(|_| invalid("an invalid size of a chunk"))?;
        if self.left == 0 {
            while !read_line(&mut reader.take(MAX_HEAD_BYTES))?.is_empty() {}
            self.is_over = true;
        }
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<()> {
        let end = read_line(&mut (&mut self.connection.reader).take(MAX_HEAD_BYTES))?;
        if end.is_empty() { Ok(()) } else { Err(invalid("a chunk longer than its size")) }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.length == Length::Chunked && self.left == 0 && !self.is_over {
            self.begin_chunk()?;
        }
        if self.is_over || buffer.is_empty() {
            return Ok(0);
        }
        if self.length == Length::UntilClosed {
            let read = self.connection.reader.read(buffer)?;
            self.is_over = read == 0;
            return Ok(read);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.connection.reader.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        if self.left == 0 {
            match self.length {
                Length::Chunked => self.end_chunk()?,
                _ => self.is_over = true,
            }
        }
        Ok(read)
    }
}

/// A line without its end.
fn read_line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| invalid("a header that is no UTF-8"))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The status and the body of an answer with these bytes, and whether its connection can be used again.
    fn answer(bytes: &'static [u8]) -> Result<(u16, String, bool)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::of(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1000]).unwrap();
            stream.write_all(bytes).unwrap();
        });
        let answer = Connection::open(&address)?.send(&request(&address, "/x", None, None), None);
        let result = answer.and_then(|mut answer| {
            let mut text = String::new();
            answer.body.read_to_string(&mut text)?;
            Ok((answer.status, text, answer.body.into_connection().is_some()))
        });
        server.join().unwrap();
        result
    }

    #[test]
    fn a_body_ends_after_its_length_its_last_chunk_or_with_the_connection() {
        let with_length = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(answer(with_length).unwrap(), (200, "abc".into(), true));
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n";
        assert_eq!(answer(chunked).unwrap(), (200, "abc".into(), true));
        let until_closed = b"HTTP/1.1 404 Not Found\r\n\r\nabc";
        assert_eq!(answer(until_closed).unwrap(), (404, "abc".into(), false));
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(answer(closing).unwrap(), (200, String::new(), false));
    }

    #[test]
    fn an_answer_that_breaks_off_or_is_no_http_is_an_error() {
        let broken: [&'static [u8]; 5] = [
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n",
            b"+PONG\r\n\r\n",
        ];
        for bytes in broken {
            assert!(answer(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn an_address_has_a_port_and_a_path_without_the_version() {
        let url = |url| Address::of(url).map(|address| address.url("/health"));
        assert_eq!(url("http://a:8000").as_deref(), Some("http://a:8000/health"));
        assert_eq!(url("http://a/v1/").as_deref(), Some("http://a:80/health"));
        assert_eq!(url("http://a:1/b/v1").as_deref(), Some("http://a:1/b/health"));
        assert_eq!((url("https://a"), url("http://"), url("a:1")), (None, None, None));
    }
}
