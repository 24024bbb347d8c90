use super::*;

fn launching(script: &str) -> Launching {
    let launch = format!("test-{}/{:p}", std::process::id(), script);
    let command = ["sh", "-c", script].map(str::to_string).to_vec();
    Launching { command, launch, ..Launching::default() }
}

/// A stream that gives one part for each read. `None` is a read that a signal interrupts.
struct Parts(VecDeque<Option<&'static [u8]>>);

impl Read for Parts {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.0.pop_front() {
            Some(Some(mut part)) => part.read(buffer),
            Some(None) => Err(ErrorKind::Interrupted.into()),
            None => Ok(0),
        }
    }
}

#[test]
fn reading_continues_after_an_interrupted_read() {
    let stream = || Parts(VecDeque::from([None, Some(&b"one\ntw"[..]), None, Some(b"o\n"), None]));
    let (sender, mut lines) = mpsc::channel(MAX_UNREAD_LINES);
    read_lines(stream(), &sender);
    drop(sender);
    let read: Vec<Vec<u8>> = std::iter::from_fn(|| match lines.try_recv().ok()?.frame {
        Frame::Line(bytes) => Some(bytes),
        Frame::TooLong { .. } => None,
    })
    .collect();
    assert_eq!(read, [b"one".to_vec(), b"two".to_vec()]);
    let stored = Mutex::new(VecDeque::new());
    store_last_lines(stream(), &stored, &Secrets::default(), None);
    assert_eq!(stored.into_inner().unwrap(), ["one", "two"]);
}

/// The kernel's letter for the state of a process: `Z` if it has ended and is not reaped.
#[cfg(target_os = "linux")]
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_ended_leader_keeps_its_number_until_its_group_has_ended() {
    let mut process = Process::start(&launching("exit 3")).unwrap();
    let status = process.wait(Duration::from_secs(60)).await;
    assert_eq!(status.and_then(|status| status.code()), Some(3));
    assert_eq!(state(process.pid), Some('Z'), "another process could get its number");
    process.end(Duration::ZERO).await;
    assert!(!process.leader.keeps_its_number());
    drop(process);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_process_reports_its_signal() {
    use std::os::unix::process::ExitStatusExt;
    let mut process = Process::start(&launching("kill -9 $$")).unwrap();
    let status = process.wait(Duration::from_secs(60)).await;
    assert_eq!(status.and_then(|status| status.signal()), Some(9));
}

/// After an expensive search of the whole machine, later pauses look only at the processes that it found.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn repeated_pauses_search_all_processes_only_once_if_a_search_is_expensive() {
    let mut process = Process::start(&launching("read forever")).unwrap();
    process.pause().await;
    // A process that waits for a busy processor stops only when it gets the processor.
    let stopped = async {
        while state(process.pid) != Some('T') {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), stopped).await.unwrap();
    let searched = process.family.lock().unwrap().make_search_expensive();
    assert!(searched.is_some(), "a pause uses `ProcessFamily`, which limits the cost of searches");
    process.resume();
    process.pause().await;
    assert_eq!(process.family.lock().unwrap().make_search_expensive(), searched);
    process.resume();
    process.end(Duration::ZERO).await;
}
