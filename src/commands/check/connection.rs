//! One process of the engine, and the raw lines to and from it. The last lines are kept as evidence.

use std::time::{Duration, Instant};

use protocol::{Frame, Message};

use super::result::{Finding, Outcome};
use crate::run::process::{
    Cause, LINE_TOO_LONG, Launching, Line, MAX_STRAY_LINES, Process, describe_exit, limited,
};

pub struct Connection {
    process: Process,
    /// The beginning of the present deadline: the last call of `send` or `restart_deadline`.
    deadline_began: Instant,
    /// The last line that was sent, and the last line that was received after it.
    pub sent: Vec<u8>,
    pub received: Vec<u8>,
    /// The first stray line (a line on stdout that is no JSON object), and the number of stray lines.
    pub first_stray_line: Option<Vec<u8>>,
    stray_lines: usize,
    /// Whether the last request got text in place of a message.
    pub answers_with_text: bool,
    /// Whether this process cannot answer any more.
    pub is_lost: bool,
    /// Whether the process ended by itself.
    pub ended: bool,
    /// Whether the process still runs, but gave no answer within the deadline or closed stdout.
    pub silent: bool,
}

impl Connection {
    pub fn open(launching: &Launching) -> std::io::Result<Self> {
        let process = Process::start(launching)?;
        Ok(Self {
            process,
            deadline_began: Instant::now(),
            sent: Vec::new(),
            received: Vec::new(),
            first_stray_line: None,
            stray_lines: 0,
            answers_with_text: false,
            is_lost: false,
            ended: false,
            silent: false,
        })
    }

    pub fn restart_deadline(&mut self) {
        self.deadline_began = Instant::now();
    }

    pub async fn send(&mut self, line: &[u8], deadline: Duration) -> Outcome {
        self.sent = line.to_vec();
        self.restart_deadline();
        self.received.clear();
        match tokio::time::timeout(deadline, self.process.write(line)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.fault_at_end().await),
            Err(_) => self.give_up(format!("did not read the line within {} s", deadline.as_secs_f64())),
        }
    }

    /// The next message. A message does not restart the deadline, so an engine that sends messages without end cannot delay it.
    pub async fn receive(&mut self, deadline: Duration) -> Outcome<(Message, Instant)> {
        let until = self.deadline_began + deadline;
        loop {
            let line = match tokio::time::timeout_at(until.into(), self.process.line()).await {
                Ok(Some(line)) if line.at <= until => line,
                Ok(None) => return Err(self.fault_at_end().await),
                Ok(Some(_)) | Err(_) => {
                    self.silent = true;
                    let fault = match self.process.stopped().await {
                        Some(pid) => Cause::Stopped { after: deadline, pid }.to_string(),
                        None => format!("{} (`--timeout` sets the limit)", Cause::Timeout(deadline)),
                    };
                    let fault = self.with_text(fault);
                    return self.give_up(fault);
                }
            };
            if let Some(message) = self.parse(line)? {
                return Ok(message);
            }
        }
    }

    /// Refuses messages that no request caused.
    pub fn expect_no_message(&mut self) -> Outcome {
        while let Some(line) = self.process.waiting_line() {
            if self.parse(line)?.is_some() {
                return self.give_up("wrote a message without a request".into());
            }
        }
        Ok(())
    }

    /// Waits for the process to end by itself. It must succeed and leave no process behind.
    pub async fn wait_for_exit(&mut self, deadline: Duration) -> Outcome {
        self.is_lost = true;
        let Some(status) = self.process.wait(deadline).await else {
            return self.give_up(format!("did not exit within {} s", deadline.as_secs_f64()));
        };
        let remaining = self.process.end(Duration::ZERO).await;
        match (status.success(), remaining.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => self.give_up(format!("left processes behind: {}", remaining.join(", "))),
            (false, _) => {
                self.ended = true;
                self.give_up(format!("ended with {}", describe_exit(status)))
            }
        }
    }

    pub fn close_stdin(&mut self) {
        self.process.close_stdin();
    }

    pub async fn end(mut self) {
        self.process.end(Duration::ZERO).await;
    }

    pub fn stderr(&self) -> Vec<String> {
        self.process.stderr()
    }

    fn parse(&mut self, line: Line) -> Outcome<Option<(Message, Instant)>> {
        let bytes = match line.frame {
            Frame::Line(bytes) => bytes,
            Frame::TooLong { .. } => return self.give_up(format!("wrote {LINE_TOO_LONG}")),
        };
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            self.stray_lines += 1;
            self.first_stray_line.get_or_insert_with(|| bytes.clone());
            if self.stray_lines > MAX_STRAY_LINES {
                self.received = bytes;
                return self.give_up(format!(
                    "wrote more than {MAX_STRAY_LINES} lines on stdout that are not JSON objects, before one message"
                ));
            }
            return Ok(None);
        }
        self.stray_lines = 0;
        let message = protocol::parse_message(&bytes);
        self.received = bytes;
        if !line.is_complete {
            return self.give_up("ended in the middle of a line".into());
        }
        match message {
            Ok(Message::Failed(failed)) => Ok(Some((Message::Failed(limited(failed)), line.at))),
            Ok(message) => Ok(Some((message, line.at))),
            Err(refused) => self.give_up(format!("wrote an invalid message: {}", refused.message)),
        }
    }

    /// Reports a fault after which this process gets no more requests.
    fn give_up<T>(&mut self, fault: String) -> Outcome<T> {
        self.is_lost = true;
        Err(Finding::Wrong(fault))
    }

    /// A missing answer. If the engine wrote text in place of a message, the text is the received line.
    fn with_text(&mut self, fault: String) -> String {
        let Some(stray) = self.first_stray_line.clone().filter(|_| self.received.is_empty()) else {
            return fault;
        };
        self.received = stray;
        self.answers_with_text = true;
        format!("{fault}; what it wrote on stdout is not a JSON object")
    }

    /// The fault of a process that closed stdin or stdout, which usually means that it ended.
    async fn fault_at_end(&mut self) -> Finding {
        self.is_lost = true;
        let fault = match self.process.wait(Duration::from_secs(2)).await {
            Some(status) => {
                self.ended = true;
                format!("ended with {} before it answered", describe_exit(status))
            }
            None => {
                self.silent = true;
                "closed stdout and kept running".into()
            }
        };
        // A program that ends without reading its stdin may have written lines that nothing has read yet. Only after its end is
        // it certain that a last line comes.
        while let Some(line) =
            if self.ended { self.process.line().await } else { self.process.waiting_line() }
        {
            // A fault of such a line comes after this one.
            drop(self.parse(line));
        }
        Finding::Wrong(self.with_text(fault))
    }
}
