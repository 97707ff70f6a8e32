//! One connection through the proxy: four threads, of which two read frames and apply faults to them, and two
//! write them when they are due. Owns both sockets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::exchange::{Arrival, Exchange, Request};
use super::faults::{AfterDrop, Loss};
use super::line::{Action, Line};
use super::listener::Shared;
use crate::lock;
use crate::resp::FrameScanner;

const CHUNK_BYTES: usize = 64 * 1024;
const THREADS: usize = 4;

#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    to_server: Line,
    to_client: Line,
    exchange: Mutex<Exchange>,
    is_silent: AtomicBool,
    has_server_left: AtomicBool,
    threads_running: AtomicUsize,
}

impl Link {
    /// Starts to pass frames between the two sockets.
    pub(super) fn start(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) -> io::Result<Arc<Self>> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let link = Arc::new(Self {
            client,
            server,
            to_server: Line::default(),
            to_client: Line::default(),
            exchange: Mutex::new(Exchange::new()),
            is_silent: AtomicBool::new(false),
            has_server_left: AtomicBool::new(false),
            threads_running: AtomicUsize::new(THREADS),
        });
        link.run(shared, Self::read_requests);
        link.run(shared, Self::read_replies);
        link.run(shared, Self::write_requests);
        link.run(shared, Self::write_replies);
        Ok(link)
    }

    fn run(self: &Arc<Self>, shared: &Arc<Shared>, body: impl FnOnce(&Self, &Shared) + Send + 'static) {
        let (link, shared) = (Arc::clone(self), Arc::clone(shared));
        std::thread::spawn(move || {
            body(&link, &shared);
            link.threads_running.fetch_sub(1, Ordering::SeqCst);
        });
    }

    pub(super) fn is_finished(&self) -> bool {
        self.threads_running.load(Ordering::SeqCst) == 0
    }

    /// Nothing passes from now on.
    pub(super) fn silence(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Looks again whether the proxy is stalled.
    pub(super) fn wake(&self) {
        self.to_server.wake();
        self.to_client.wake();
    }

    /// Closes the client's connection; the server's follows when what is on its way there has arrived.
    pub(super) fn cut(&self) {
        shut(&self.client, Shutdown::Both);
        if self.is_silent.load(Ordering::SeqCst) {
            shut(&self.server, Shutdown::Both);
        }
    }

    /// Ends everything at once.
    pub(super) fn close(&self) {
        shut(&self.client, Shutdown::Both);
        shut(&self.server, Shutdown::Both);
        self.to_server.close();
        self.to_client.close();
    }

    fn read_requests(&self, shared: &Shared) {
        let mut scanner = FrameScanner::requests();
        read_chunks(&self.client, |chunk| {
            let due = Instant::now() + lock(&shared.delays).0;
            lock(&shared.stats).bytes_to_server += chunk.len() as u64;
            for frame in frames(&mut scanner, chunk, shared.is_framed) {
                self.pass_request(frame, due, shared);
            }
        });
        self.to_server.push(Instant::now() + lock(&shared.delays).0, Action::End);
    }

    fn pass_request(&self, frame: Frame, due: Instant, shared: &Shared) {
        let frame = match frame {
            Frame::Whole(frame) => frame,
            Frame::Opaque(bytes) => return self.to_server.push(due, Action::Write(bytes)),
        };
        let request = Request::parse(&frame);
        count_request(shared, &request);
        let faults = lock(&shared.plan).take_for_request(&request, &frame);
        let mut exchange = lock(&self.exchange);
        exchange.sent(&request, faults.loss);
        if faults.duplicate.is_some() {
            exchange.sent(&request, Some(Loss::of_duplicate()));
        }
        drop(exchange);
        let twice = faults.duplicate.is_some().then(|| frame.clone());
        self.to_server.push(
            due,
            match faults.hold {
                Some(progress) => Action::HoldThenWrite(progress, frame),
                None => Action::Write(frame),
            },
        );
        if let (Some(frame), Some(progress)) = (twice, faults.duplicate) {
            self.to_server.push(due, Action::Write(frame));
            progress.fire();
        }
    }

    fn read_replies(&self, shared: &Shared) {
        let mut scanner = FrameScanner::replies();
        read_chunks(&self.server, |chunk| {
            let due = Instant::now() + lock(&shared.delays).1;
            lock(&shared.stats).bytes_to_client += chunk.len() as u64;
            for frame in frames(&mut scanner, chunk, shared.is_framed) {
                self.pass_reply(frame, due, shared);
            }
        });
        self.has_server_left.store(true, Ordering::SeqCst);
        self.to_client.push(Instant::now() + lock(&shared.delays).1, Action::End);
    }

    fn pass_reply(&self, frame: Frame, due: Instant, shared: &Shared) {
        let frame = match frame {
            Frame::Whole(frame) => frame,
            Frame::Opaque(bytes) => return self.to_client.push(due, Action::Write(bytes)),
        };
        let arrival = lock(&self.exchange).arrived(&frame);
        let is_reply = matches!(arrival, Arrival::Reply(_));
        let mut stats = lock(&shared.stats);
        stats.replies += u64::from(is_reply);
        stats.pushes += u64::from(!is_reply);
        drop(stats);
        let loss = match arrival {
            Arrival::Reply(loss) => loss.or_else(|| lock(&shared.plan).take_for_reply()),
            Arrival::Confirmation(loss) => loss,
            Arrival::Message => lock(&shared.plan).take_for_push(),
            Arrival::OtherPush => None,
        };
        let Some(loss) = loss else { return self.to_client.push(due, Action::Write(frame)) };
        match loss.after {
            AfterDrop::Cut => self.to_client.push(due, Action::End),
            AfterDrop::Silence => self.to_client.push(due, Action::Silence),
            AfterDrop::Continue => {}
        }
        loss.report();
    }

    fn write_requests(&self, shared: &Shared) {
        sharpen_timers();
        let mut server = &self.server;
        while let Some(action) = self.to_server.next(|| shared.is_stalled()) {
            match action {
                Action::Write(bytes) => self.write(server, &bytes),
                Action::HoldThenWrite(progress, bytes) => {
                    progress.hold();
                    // A first write to a socket whose peer is gone still succeeds.
                    let is_lost =
                        self.is_silent.load(Ordering::SeqCst) || self.has_server_left.load(Ordering::SeqCst);
                    progress.report_delivery(!is_lost && server.write_all(&bytes).is_ok());
                }
                Action::Silence => self.silence(),
                Action::End if self.is_silent.load(Ordering::SeqCst) => {}
                Action::End => {
                    shut(server, Shutdown::Write);
                    return;
                }
            }
        }
    }

    fn write_replies(&self, shared: &Shared) {
        sharpen_timers();
        while let Some(action) = self.to_client.next(|| shared.is_stalled()) {
            match action {
                Action::Write(bytes) | Action::HoldThenWrite(_, bytes) => self.write(&self.client, &bytes),
                Action::Silence => self.silence(),
                Action::End if self.is_silent.load(Ordering::SeqCst) => {}
                Action::End => {
                    shut(&self.client, Shutdown::Both);
                    return;
                }
            }
        }
    }

    fn write(&self, mut socket: &TcpStream, bytes: &[u8]) {
        if !self.is_silent.load(Ordering::SeqCst) {
            // A peer that went away: its own reader notices and ends the link.
            let _ = socket.write_all(bytes);
        }
    }
}

enum Frame {
    Whole(Vec<u8>),
    /// Not RESP: passed on without looking at it.
    Opaque(Vec<u8>),
}

fn frames(scanner: &mut FrameScanner, chunk: &[u8], is_framed: bool) -> Vec<Frame> {
    if !is_framed {
        return vec![Frame::Opaque(chunk.to_vec())];
    }
    scanner.extend(chunk);
    let mut frames = Vec::new();
    loop {
        match scanner.next_frame() {
            Ok(Some(frame)) => frames.push(Frame::Whole(frame)),
            Ok(None) => return frames,
            Err(_) => {
                frames.push(Frame::Opaque(scanner.take_rest()));
                return frames;
            }
        }
    }
}

/// Until the peer ends the connection or it breaks: for the other side both are the end.
fn read_chunks(mut socket: &TcpStream, mut handle: impl FnMut(&[u8])) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match socket.read(&mut chunk) {
            Ok(0) => return,
            Ok(bytes) => handle(&chunk[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn count_request(shared: &Shared, request: &Request) {
    let mut stats = lock(&shared.stats);
    stats.requests += 1;
    *stats.commands.entry(request.command.clone()).or_default() += 1;
}

fn shut(socket: &TcpStream, how: Shutdown) {
    // Already shut or broken is as good.
    let _ = socket.shutdown(how);
}

/// Lets this thread's waits end on time: by default Linux may end each 50 µs late.
fn sharpen_timers() {
    #[cfg(target_os = "linux")]
    {
        // Where it is refused delays are a little longer.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}
