//! Shared memory between two peers on one host: descriptors over a Unix socket.
//!
//! A receiver keeps small files for some seconds after it has unmapped what was in them, and tells
//! the sender. What is sent in such a file meanwhile needs no descriptor: its header says where it
//! is. A mapping costs many times as much as a message, so this is for those who send the same
//! amounts again and again. Should the receiver not have the file any more, the object comes in bytes.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use treadle_memory::{Export, Foreign, Handover, SegmentId, Segments};
use treadle_reactor::thread::lock;
use treadle_reactor::{Driver, Interest, Readiness, Source, Token};
use treadle_transfer::TransferId;

use crate::memory::Region;
use crate::peer::Shared;
use crate::wire::{self, Frame, Segment};

/// The most descriptors that travel with one message, and regions of an object that is shared.
const MAX_DESCRIPTORS: usize = 64;
/// Descriptors that wait for a peer to read: each is one of this process's few.
const MAX_QUEUED: usize = 4 * MAX_DESCRIPTORS;
/// Received descriptors whose message is not whole yet.
const MAX_UNCLAIMED: usize = 2 * MAX_DESCRIPTORS;
/// No object's id: who sends it on a descriptor connection is ready to map what comes there.
const NONE: TransferId = TransferId(0);
/// Set in the ids of what is somebody else's and was handed on.
const MAPPED: u64 = 1 << 63;
/// Files of a peer that are kept, at most, of at most so many bytes each, and for how long.
const MAX_KEPT: usize = 32;
const MAX_KEPT_SIZE: u64 = 4 << 20;
const KEPT_FOR: Duration = Duration::from_secs(10);
/// A sender relies on fewer, for less long: the peer may drop one while it is sent something in it.
const MAX_KNOWN: usize = MAX_KEPT / 2;
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// Memory that another process can map.
#[derive(Debug)]
enum Shareable {
    /// It was born here.
    Own(Export),
    /// It is mapped here.
    Mapped(Handover),
}

impl Shareable {
    fn of(region: &Bytes) -> Option<Self> {
        let own = Segments::global().export(region.as_ptr(), region.len());
        own.map(Self::Own)
            .or_else(|| Handover::of(region.as_ptr(), region.len()).map(Self::Mapped))
    }

    /// As its peer knows it.
    fn segment(&self) -> Segment {
        match self {
            Self::Own(export) => Segment {
                id: export.segment.0,
                offset: export.offset,
                length: export.length,
                file: export.file().0,
            },
            Self::Mapped(handover) => Segment {
                id: handover.id() | MAPPED,
                offset: handover.offset,
                length: handover.length,
                file: handover.file().0,
            },
        }
    }
}

impl AsFd for Shareable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(export) => export.as_fd(),
            Self::Mapped(handover) => handover.as_fd(),
        }
    }
}

/// The regions of one object, as shared memory that does not change any more.
#[derive(Debug)]
pub(crate) struct Exports(Vec<Shareable>);

/// The regions of one object, mapped.
pub(crate) type Mappings = Vec<Region>;

/// The regions as shared memory, if all of them were born in it, or are mapped here.
pub(crate) fn export(regions: &[Bytes]) -> Option<Exports> {
    if regions.is_empty() || regions.len() > MAX_DESCRIPTORS {
        return None;
    }
    let is_shared = |region: &Bytes| {
        Segments::global().contains(region.as_ptr(), region.len())
            || Handover::is_possible(region.as_ptr(), region.len())
    };
    if !regions.iter().all(is_shared) {
        return None;
    }
    let exports = regions.iter().map(Shareable::of);
    exports.collect::<Option<Vec<_>>>().map(Exports)
}

/// What a peer may have mapped.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    loans: HashMap<u64, Loan>,
    /// Files that it keeps, and when it last said so, the latest last.
    known: VecDeque<(u64, Duration)>,
}

#[derive(Debug)]
struct Loan {
    /// How often it was lent.
    count: u32,
    /// What has it stay, if it is somebody else's.
    kept: Option<Handover>,
}

impl Lent {
    pub(crate) fn lend(&mut self, exports: &Exports) {
        for export in &exports.0 {
            let loan = self.loans.entry(export.segment().id).or_insert(Loan {
                count: 0,
                kept: None,
            });
            loan.count += 1;
            match export {
                Shareable::Own(export) => Segments::global().lend(export.segment),
                Shareable::Mapped(handover) => loan.kept = Some(handover.clone()),
            }
        }
    }

    /// The peer has unmapped these; what was never lent to it is not its to release. What it returns
    /// is to be dropped outside of locks: that tells somebody else.
    #[must_use]
    pub(crate) fn release(&mut self, segments: &[u64]) -> Vec<Handover> {
        let mut returned = Vec::new();
        for segment in segments {
            let Some(loan) = self.loans.get_mut(segment) else {
                continue;
            };
            loan.count -= 1;
            let is_own = loan.kept.is_none();
            if loan.count == 0 {
                returned.extend(self.loans.remove(segment).and_then(|loan| loan.kept));
            }
            if is_own {
                Segments::global().release(SegmentId(*segment));
            }
        }
        returned
    }

    /// The peer keeps these files.
    pub(crate) fn keeps(&mut self, files: &[u64], now: Duration) {
        for file in files {
            self.known.retain(|(known, _)| known != file);
            self.known.push_back((*file, now));
        }
        let spare = self.known.len().saturating_sub(MAX_KNOWN);
        self.known.drain(..spare);
    }

    /// It does not.
    pub(crate) fn forget_files(&mut self) {
        self.known.clear();
    }

    /// Where regions are in files that the peer keeps, if all of them are.
    pub(crate) fn known(&self, exports: &Exports, now: Duration) -> Option<Vec<Segment>> {
        let is_known = |segment: &Segment| {
            let mut known = self.known.iter().rev();
            known.any(|(file, said)| *file == segment.file && now < *said + KNOWN_FOR)
        };
        let segments = exports.0.iter().map(Shareable::segment);
        segments
            .map(|segment| is_known(&segment).then_some(segment))
            .collect()
    }

    /// The peer is gone, and may live on in its children.
    pub(crate) fn abandon(&mut self) {
        for (segment, loan) in self.loans.drain() {
            if let Some(handover) = loan.kept {
                handover.abandon();
                continue;
            }
            for _ in 0..loan.count {
                Segments::global().abandon(SegmentId(segment));
            }
        }
    }
}

/// A peer's files that need not be passed again, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Kept(VecDeque<Keeping>);

#[derive(Debug)]
struct Keeping {
    /// The peer's number.
    number: u64,
    file: Arc<Foreign>,
    used: Duration,
}

impl Kept {
    /// Keeps files from now on; says which. What gives way to them is to be dropped outside of locks.
    pub(crate) fn keep<'a>(
        &mut self,
        files: impl Iterator<Item = &'a (u64, Arc<Foreign>)>,
        now: Duration,
        dropped: &mut Vec<Arc<Foreign>>,
    ) -> Vec<u64> {
        for (number, file) in files {
            // The peer may have passed a file twice: the later one is as good.
            self.0.retain(|kept| kept.number != *number);
            self.0.push_back(Keeping {
                number: *number,
                file: Arc::clone(file),
                used: now,
            });
        }
        let spare = self.0.len().saturating_sub(MAX_KEPT);
        dropped.extend(self.0.drain(..spare).map(|kept| kept.file));
        let fresh = self.0.iter().filter(|kept| kept.used == now);
        fresh.map(|kept| kept.number).collect()
    }

    /// The peer's file of this number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<Foreign>> {
        let kept = self.0.iter().find(|kept| kept.number == number)?;
        Some(Arc::clone(&kept.file))
    }

    /// Files that were not used for long.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Arc<Foreign>> {
        let is_fresh = |kept: &Keeping| now < kept.used + KEPT_FOR;
        let expired = self.0.partition_point(|kept| !is_fresh(kept));
        self.0.drain(..expired).map(|kept| kept.file).collect()
    }

    pub(crate) fn into_files(self) -> Vec<Arc<Foreign>> {
        self.0.into_iter().map(|kept| kept.file).collect()
    }
}

/// Maps an object's regions; none of them, if one cannot be mapped.
pub(crate) fn map(
    shared: &Arc<Shared>,
    segments: &[Segment],
    files: impl Iterator<Item = Option<Arc<Foreign>>>,
) -> Mappings {
    let mut mappings = Mappings::new();
    if segments.len() > MAX_DESCRIPTORS {
        // Nobody passes so many.
        return mappings;
    }
    for (segment, file) in segments.iter().zip(files) {
        let mapping = file
            .as_ref()
            .map(|file| file.map(segment.offset, segment.length));
        let may_stay = |file: &Arc<Foreign>| file.may_stay() && file.size() <= MAX_KEPT_SIZE;
        let unmapped = Unmapped {
            segment: segment.id,
            file: file.filter(may_stay).map(|file| (segment.file, file)),
        };
        let shared = Arc::downgrade(shared);
        match mapping {
            Some(Ok(mut mapping)) => {
                mapping.on_drop(Box::new(move || unmapped.tell(&shared)));
                mappings.push(Region::mapped(mapping));
            }
            // The sender has lent it: what cannot be mapped is returned, too.
            _ => unmapped.tell(&shared),
        }
    }
    if mappings.len() < segments.len() {
        mappings.clear();
    }
    mappings
}

/// A segment that is not mapped here any more.
#[derive(Debug)]
pub(crate) struct Unmapped {
    pub(crate) segment: u64,
    /// Its file, if that can be kept, by the sender's number.
    pub(crate) file: Option<(u64, Arc<Foreign>)>,
}

impl Unmapped {
    /// Has the sender told.
    fn tell(self, shared: &Weak<Shared>) {
        if let Some(shared) = shared.upgrade() {
            lock(&shared.released).push(self);
            shared.driver.sources.call_at(shared.token, Instant::now());
        }
    }
}

#[derive(Debug, Default)]
struct Out {
    queue: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Bytes of the first message that were written; its descriptors went with the first.
    written: usize,
    /// The socket takes no more for now.
    full: bool,
}

#[derive(Debug, Default)]
struct In {
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

/// The descriptor connection of a pair.
#[derive(Debug)]
pub(crate) struct Channel {
    shared: Arc<Shared>,
    driver: Arc<Driver>,
    token: Token,
    socket: UnixStream,
    out: Mutex<Out>,
    input: Mutex<In>,
}

impl Channel {
    /// Takes over a connection.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        socket: UnixStream,
        driver: &Arc<Driver>,
        token: Token,
    ) {
        let channel = Arc::new(Self {
            shared: Arc::clone(shared),
            driver: Arc::clone(driver),
            token,
            socket,
            out: Mutex::default(),
            input: Mutex::default(),
        });
        driver.sources.replace(token, Arc::clone(&channel) as _);
        let old = shared.with(|inner| {
            if inner.ended().is_some() {
                channel.cut();
                return None;
            }
            inner.maps = false;
            inner.channel.replace(Arc::clone(&channel))
        });
        if let Some(old) = old {
            old.cut();
        }
        // What is offered before the other side can map it would come in bytes.
        let mut ready = Vec::new();
        wire::encode_descriptors(NONE, &[], &mut ready);
        lock(&channel.out).queue.push_back((ready, Vec::new()));
        channel.flush();
        driver.sources.interest(token, Interest::Read);
    }

    pub(crate) fn cut(&self) {
        self.driver.sources.shut(self.token);
    }

    /// Passes the descriptors of an object's regions, with the next [`Channel::flush`].
    pub(crate) fn send(&self, object: TransferId, exports: &Exports) {
        let segments: Vec<_> = exports.0.iter().map(Shareable::segment).collect();
        let cloned: io::Result<Vec<_>> = exports
            .0
            .iter()
            .map(|export| export.as_fd().try_clone_to_owned())
            .collect();
        let Ok(descriptors) = cloned else {
            // No descriptors left. Without a channel the receiver asks for the bytes.
            self.cut();
            return;
        };
        let mut message = Vec::new();
        wire::encode_descriptors(object, &segments, &mut message);
        let mut out = lock(&self.out);
        out.queue.push_back((message, descriptors));
        if out.queue.len() > MAX_DESCRIPTORS {
            self.write(&mut out);
        }
        let queued: usize = out
            .queue
            .iter()
            .map(|(_, descriptors)| descriptors.len())
            .sum();
        if queued > MAX_QUEUED {
            out.queue.clear();
            self.cut();
        }
    }

    /// Passes what waits.
    pub(crate) fn flush(&self) {
        self.write(&mut lock(&self.out));
    }

    fn write(&self, out: &mut Out) {
        while let Some((bytes, descriptors)) = out.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if out.written == 0 && !borrowed.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
            }
            let slices = [IoSlice::new(&bytes[out.written..])];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &slices, &mut ancillary, flags) {
                Ok(count) => {
                    out.written += count;
                    if out.written == bytes.len() {
                        out.queue.pop_front();
                        out.written = 0;
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    out.full = true;
                    self.driver.sources.interest(self.token, Interest::Both);
                    return;
                }
                Err(_) => {
                    out.queue.clear();
                    self.cut();
                    return;
                }
            }
        }
        if std::mem::take(&mut out.full) {
            self.driver.sources.interest(self.token, Interest::Read);
        }
    }

    /// Reads once; `false` at the end, or when the peer sends what it must not.
    fn receive(&self, input: &mut In) -> bool {
        let mut buffer = [0; 16 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let count = match recvmsg(&self.socket, &mut slices, &mut ancillary, flags) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
            Err(_) => return false,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                input.descriptors.extend(descriptors);
            }
        }
        input.bytes.extend_from_slice(&buffer[..count]);
        count > 0 && input.descriptors.len() <= MAX_UNCLAIMED && self.decode(input)
    }

    fn decode(&self, input: &mut In) -> bool {
        let mut start = 0;
        let mut sound = true;
        while sound {
            let rest = &input.bytes[start..];
            let length = match wire::frame_length(rest) {
                Ok(Some(length)) if length <= rest.len() => length,
                Ok(_) => break,
                Err(_) => return false,
            };
            match wire::decode_frame(&rest[..length]) {
                Ok(Some(Frame::Descriptors(NONE, segments))) if segments.is_empty() => {
                    self.shared.with(|inner| {
                        inner.maps = true;
                        // Somebody may wait for it.
                        inner.changed = true;
                    });
                }
                Ok(Some(Frame::Descriptors(object, segments)))
                    if segments.len() <= input.descriptors.len() =>
                {
                    let descriptors = input.descriptors.drain(..segments.len()).collect();
                    self.map(object, &segments, descriptors);
                }
                _ => sound = false,
            }
            start += length;
        }
        input.bytes.drain(..start);
        sound
    }

    /// Maps what was passed. What cannot be mapped is asked for in bytes.
    fn map(&self, object: TransferId, segments: &[Segment], descriptors: Vec<OwnedFd>) {
        let files = descriptors.into_iter().map(|fd| Foreign::new(fd).ok());
        let mappings = map(&self.shared, segments, files);
        let now = self.shared.now();
        self.shared
            .with(|inner| inner.mapped(object, mappings, now));
    }
}

impl Source for Channel {
    fn ready(self: Arc<Self>, _token: Token, readiness: Readiness) {
        if readiness.writable {
            self.flush();
        }
        if readiness.readable && !self.receive(&mut lock(&self.input)) {
            self.cut();
            self.driver.sources.deregister(self.token);
            self.shared.with(|inner| inner.channel_ended(&self));
        }
    }

    fn tick(self: Arc<Self>, _token: Token, _now: Instant) -> Option<Instant> {
        None
    }

    fn panicked(self: Arc<Self>, _token: Token, reason: String) {
        self.shared.broken(reason);
    }
}
