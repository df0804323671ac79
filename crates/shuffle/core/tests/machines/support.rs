//! A shuffle by hand: one master, servers with their bytes, and no network between them. Whoever uses
//! it decides what arrives, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use treadle_shuffle::block::{Table, TableBuilder};
use treadle_shuffle::{
    AttemptId, Broken, Config, ConnectionId, FromServer, Gathered, GroupId, LinkId, Master,
    MasterEffect, MasterEvent, Plan, Push, Server, ServerEffect, ServerEvent, ServerId, ShuffleId,
    Spec, Tally, Tenant, ToMaster, ToNode, ToSend, ToServer, Transfer, Writer, WriterEffect,
    WriterEvent,
};
use treadle_types::Runs;

pub(crate) const S: ShuffleId = ShuffleId(7);
pub(crate) const C: ConnectionId = ConnectionId(1);

pub(crate) fn server_id(node: u32) -> ServerId {
    ServerId {
        node,
        incarnation: 1,
    }
}

pub(crate) fn transfer(map: u32, attempt: u64) -> Transfer {
    Transfer {
        shuffle: S,
        map,
        attempt: AttemptId(attempt),
    }
}

pub(crate) fn spec(maps: u32, partitions: u32) -> Spec {
    Spec {
        tenant: Tenant::default(),
        maps,
        partitions,
        outputs: Runs::range(0, u64::from(partitions)),
        aligned: None,
        copies: 1,
        is_handed_over: false,
        expected: 0,
        preferred: Vec::new(),
        committed: None,
    }
}

/// What rows count whose digest is their number.
pub(crate) fn count(rows: u64, digest: u64) -> Tally {
    Tally {
        rows,
        bytes: 8 * rows,
        digest,
    }
}

/// A batch with these pieces: a partition and its rows.
pub(crate) fn batch(
    transfer: Transfer,
    group: GroupId,
    number: u32,
    pieces: &[(u32, u64)],
) -> (Push, Table) {
    let id = transfer.batch(number);
    let mut builder = TableBuilder::new(transfer.shuffle, group.epoch, id, 8);
    for &(partition, rows) in pieces {
        let digest = u64::from(partition + 1) << 20 | u64::from(transfer.map + 1) << 10 | rows;
        builder.push(partition, &count(rows, digest));
    }
    let (header, table) = builder.finish().expect("pieces are in order");
    let push = Push {
        shuffle: transfer.shuffle,
        group,
        batch: id,
        tally: header.tally,
        length: header.length(),
    };
    (push, table)
}

/// A master, and what it said.
pub(crate) struct Head {
    pub(crate) master: Master,
    pub(crate) effects: Vec<MasterEffect>,
}

impl Head {
    /// With so many servers, and a shuffle that has been asked for.
    pub(crate) fn new(servers: u32, spec: Spec) -> Self {
        let mut head = Self {
            master: Master::new(Config::default()),
            effects: Vec::new(),
        };
        for node in 0..servers {
            head.event(MasterEvent::Joined(server_id(node)));
        }
        head.event(MasterEvent::Register { shuffle: S, spec });
        head.hear(0, ToMaster::Join(S));
        head
    }

    pub(crate) fn event(&mut self, event: MasterEvent) {
        let result = self.master.handle(event, &mut self.effects);
        result.expect("the event can be");
        self.master.check().expect("the invariants hold");
    }

    pub(crate) fn hear(&mut self, node: u32, message: ToMaster) {
        let from = server_id(node);
        self.event(MasterEvent::Message { from, message });
    }

    /// The last plan that was told.
    pub(crate) fn plan(&self) -> std::sync::Arc<Plan> {
        self.plan_of(S).expect("a plan was told")
    }

    /// The last plan of a shuffle that was told, if one was.
    pub(crate) fn plan_of(&self, shuffle: ShuffleId) -> Option<std::sync::Arc<Plan>> {
        self.effects.iter().rev().find_map(|effect| match effect {
            MasterEffect::Send {
                message: ToNode::Plan(plan),
                ..
            } if plan.shuffle == shuffle => Some(plan.clone()),
            _ => None,
        })
    }

    /// What was said since the last call.
    pub(crate) fn take(&mut self) -> Vec<MasterEffect> {
        std::mem::take(&mut self.effects)
    }
}

/// A server whose disk and network do as they are told.
pub(crate) struct Holder {
    pub(crate) server: Server,
    pub(crate) now: Duration,
    pub(crate) effects: Vec<ServerEffect>,
    /// Batches in memory, as the host has them.
    pub(crate) store: BTreeMap<(GroupId, treadle_shuffle::BatchId), u64>,
    /// Readers do not take what is sent to them.
    pub(crate) is_stuck: bool,
}

impl Holder {
    pub(crate) fn new(node: u32, config: Config) -> Self {
        Self {
            server: Server::new(server_id(node), config),
            now: Duration::ZERO,
            effects: Vec::new(),
            store: BTreeMap::new(),
            is_stuck: false,
        }
    }

    pub(crate) fn event(&mut self, event: ServerEvent) -> Vec<ServerEffect> {
        let mut effects = Vec::new();
        let result = self.server.handle(event, self.now, &mut effects);
        result.expect("the event can be");
        self.check().expect("the invariants hold");
        for effect in &effects {
            match effect {
                ServerEffect::Store { group, batch, .. } => {
                    assert!(self.store.insert((*group, *batch), 1).is_none());
                }
                ServerEffect::Drop { group, batch, .. } => {
                    assert!(self.store.remove(&(*group, *batch)).is_some());
                }
                _ => {}
            }
        }
        self.effects.extend(effects.iter().cloned());
        for at in 0..effects.len() {
            if let ServerEffect::Send(ToSend { load, .. }) = effects[at]
                && !self.is_stuck
            {
                effects.extend(self.event(ServerEvent::Sent { load }));
            }
        }
        effects
    }

    pub(crate) fn check(&self) -> Result<(), Broken> {
        self.server.check()
    }

    /// Its only master says something.
    pub(crate) fn told(&mut self, message: ToNode) -> Vec<ServerEffect> {
        let link = LinkId::ONLY;
        self.event(ServerEvent::Master { link, message })
    }

    pub(crate) fn message(&mut self, message: ToServer) -> Vec<ServerEffect> {
        self.event(ServerEvent::Message { from: C, message })
    }

    /// Announces a batch and lets it arrive, if it is let in. Returns what was answered.
    pub(crate) fn push(&mut self, (push, table): (Push, Table)) -> Option<FromServer> {
        let effects = self.message(ToServer::Push(push));
        let is_admitted = effects.contains(&ServerEffect::Admit { from: C, push });
        match is_admitted {
            true => self.arrive(push, Some(table)),
            false => answer(&effects),
        }
    }

    pub(crate) fn arrive(&mut self, push: Push, table: Option<Table>) -> Option<FromServer> {
        let from = C;
        let effects = self.event(ServerEvent::Arrived { from, push, table });
        answer(&effects)
    }
}

/// The first reply among effects.
pub(crate) fn answer(effects: &[ServerEffect]) -> Option<FromServer> {
    effects.iter().find_map(|effect| match effect {
        ServerEffect::Reply { message, .. } => Some(message.clone()),
        _ => None,
    })
}

/// What the only master of a server is told.
pub(crate) fn report(message: ToMaster) -> ServerEffect {
    let link = LinkId::ONLY;
    ServerEffect::Report { link, message }
}

/// A writer, checked after each event.
pub(crate) struct Pusher {
    pub(crate) writer: Writer,
    pub(crate) now: Duration,
}

impl Pusher {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            writer: Writer::new(config),
            now: Duration::ZERO,
        }
    }

    pub(crate) fn event(&mut self, event: WriterEvent) -> Vec<WriterEffect> {
        let mut effects = Vec::new();
        let result = self.writer.handle(event, self.now, &mut effects);
        result.expect("the event can be");
        self.writer.check().expect("the invariants hold");
        effects
    }

    pub(crate) fn gathered(
        &mut self,
        transfer: Transfer,
        group: GroupId,
        batches: &[(u64, u64)],
    ) -> Vec<WriterEffect> {
        let batches = batches
            .iter()
            .map(|&(rows, length)| (count(rows, rows), length));
        let gathered = Gathered {
            batches: batches.collect(),
        };
        self.event(WriterEvent::Gathered {
            transfer,
            group,
            gathered,
        })
    }
}
