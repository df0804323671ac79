//! How a worker registers at the scheduler and starts its threads.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use treadle_broadcast_node::{self as broadcast, Plane, host_number};
use treadle_host::{Service, ServiceHost};
use treadle_messages::{Hello, Role};
use treadle_net::{Lane, Offer, Peer, Wait};
use treadle_reactor::thread;
use treadle_schedule_wire::{self as wire, NodeError, to_scheduler};
use treadle_shuffle_node as shuffle;
use treadle_store::Store;
use treadle_types::WorkerId;
use treadle_worker::Effects;

use crate::callbacks::{PlaneCallbacks, ShuffleCallbacks};
use crate::casting::CastCalls;
use crate::control::control;
use crate::inner::{Inner, Link, Machine, Sender};
use crate::peers::{Fetching, Requests};
use crate::values::Values;
use crate::watched::Watched;
use crate::{ConnectError, Options, Worker, health, serving};

/// Threads that answer requests for values.
const SERVERS: usize = 2;

impl Worker {
    /// Registers at the scheduler, and starts the native threads. No task runs before
    /// [`Worker::start`].
    ///
    /// # Errors
    /// When the scheduler cannot be reached or refuses, the port is taken, or the directory for files
    /// cannot be made.
    pub fn connect(mut options: Options, wait: &mut Wait<'_>) -> Result<Self, ConnectError> {
        let (control_lane, data_lane) = (Lane::new()?, Lane::new()?);
        let relay_lane = Lane::attended()?;
        let offer = |service, name, lane| Offer {
            service,
            name,
            lane,
        };
        let listening = treadle_net::Options {
            services: vec![
                offer(serving::SERVICE, "values", None),
                offer(broadcast::SERVICE, "broadcast", Some(relay_lane.clone())),
                offer(shuffle::SERVICE, "shuffle", None),
            ],
            ..options.net.clone()
        };
        let services = ServiceHost::bind(&options.listen, &listening)?;
        let store = Arc::new(Store::open(options.store.clone())?);
        let net = treadle_net::Options {
            lane: Some(control_lane.clone()),
            ..to_scheduler(&options.net, options.scheduler_timeout)
        };
        let scheduler = Peer::connect(&options.scheduler, &net, wait)?;
        if let Some(cluster) = scheduler.cluster() {
            services.join(cluster);
        }
        // The other workers are of the same one.
        options.net.cluster = scheduler.cluster();
        let contact = options.net.contact.first().unwrap_or(services.address());
        let address = contact.to_string();
        let (id, info) = wire::introduce(&scheduler, &hello(&options, &address), wait)?;
        let core = treadle_worker::Worker::new(treadle_worker::Config {
            threads: options.threads,
            ..treadle_worker::Config::default()
        });
        let requests = Arc::new(Requests::new(&data_lane));
        let member = treadle_broadcast::Member {
            worker: WorkerId(id),
            host: host_number(&options.host),
            address: address.clone().into(),
        };
        let inner = Arc::new_cyclic(|this| {
            let plane = Plane::of_engine(
                member,
                options.name.clone(),
                options.memory,
                relay_lane,
                options.net.clone(),
                Box::new(PlaneCallbacks(this.clone())),
            );
            let files = vec![options.store.directory.clone()];
            let shuffles = shuffle::Plane::new(
                WorkerId(id),
                treadle_shuffle::Tenant::default(),
                &address,
                options.net.clone(),
                treadle_volume::Options::new(files, options.store.quota),
                treadle_shuffle::Config::default(),
                Box::new(ShuffleCallbacks(this.clone())),
            );
            Inner {
                _memory: health::register(services.memory(), &store, &plane, &shuffles),
                plane,
                shuffles,
                this: this.clone(),
                id: WorkerId(id),
                info,
                address,
                control_lane,
                machine: Mutex::new(Machine {
                    core,
                    effects: Effects::default(),
                    outbox: Vec::new(),
                    paused: false,
                    watched: Watched::default(),
                    ended: 0,
                }),
                inbox: Mutex::new(Link::new(scheduler.clone(), wire::LARGEST_MESSAGE)),
                sender: Mutex::new(Sender {
                    link: Link::new(scheduler.clone(), wire::LARGEST_MESSAGE),
                    left: Instant::now(),
                }),
                runs: Mutex::default(),
                resumed: Condvar::new(),
                values: Values::new(store),
                requests,
                services,
                parker: Arc::default(),
                tracing: Arc::default(),
                definitions: Mutex::default(),
                cast_calls: CastCalls::default(),
                embedder: OnceLock::new(),
                over: AtomicBool::new(false),
                held: AtomicBool::new(false),
                // What it takes from the beginning.
                is_news: AtomicBool::new(true),
                watched: AtomicBool::new(false),
                leaving: OnceLock::new(),
                end: Mutex::new(None),
                ended: Condvar::new(),
                data_lane,
                scheduler,
                options,
            }
        });
        let recording = inner.options.recording;
        inner.tracing.recorder.start(&inner.info, recording);
        let worker = Self(inner);
        worker.start_serving()?;
        Ok(worker)
    }

    /// Starts the threads.
    fn start_serving(&self) -> Result<(), NodeError> {
        let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let weak = Arc::downgrade(&self.0);
            let spawned = thread::start(name, move || Inner::guard(&weak, body));
            spawned.map(drop).map_err(no_thread)
        };
        let weak = Arc::downgrade(&self.0);
        let failed = move |reason: String| {
            if let Some(inner) = weak.upgrade() {
                inner.fail(&reason);
            }
        };
        let values: Box<dyn Service> = Box::new(serving::Values(Arc::downgrade(&self.0)));
        let neighbours: Box<dyn Service> = Box::new(self.0.plane.clone());
        let shuffles: Box<dyn Service> = Box::new(self.0.shuffles.clone());
        let services = HashMap::from([
            (serving::SERVICE, values),
            (broadcast::SERVICE, neighbours),
            (shuffle::SERVICE, shuffles),
        ]);
        let host = &self.0.services;
        let served = host.start(services, SERVERS, "treadle-serve", failed);
        served.map_err(no_thread)?;
        let weak = Arc::downgrade(&self.0);
        let poller = Arc::clone(self.0.requests.poller());
        let fetching = Fetching::new(
            &self.0.requests,
            treadle_net::Options {
                lane: Some(self.0.data_lane.clone()),
                ..self.0.options.net.clone()
            },
        );
        start(
            "treadle-fetch",
            Box::new(move || fetching.run(&weak, &poller)),
        )?;
        let (weak, parker) = (Arc::downgrade(&self.0), Arc::clone(&self.0.parker));
        start("treadle-control", Box::new(move || control(&weak, &parker)))
    }
}

/// What the scheduler is told of it.
fn hello(options: &Options, address: &str) -> Hello {
    Hello {
        role: Role::Worker {
            address: address.to_owned(),
            host: options.host.clone(),
            threads: options.threads,
            memory: options.memory,
            resources: options.resources.clone(),
        },
        name: options.name.clone(),
        python: options.python.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        info: options.info.clone(),
    }
}

fn no_thread(source: std::io::Error) -> NodeError {
    NodeError::System {
        what: "starting a thread",
        source,
    }
}
