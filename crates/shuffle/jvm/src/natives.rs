//! The methods of `io.treadle.spark.service.Native`, whose documentation says what each does.

// Each is called by the JVM with the arguments that the Java class declares.
#![allow(clippy::too_many_arguments)]

use std::path::PathBuf;

use jni::objects::{JByteArray, JClass, JLongArray, JObject, JObjectArray, JString};
use jni::sys::{jboolean, jint, jlong};
use jni::{Env, EnvUnowned};
use serde_json::Value;
use treadle_shuffle_client::source::{Packed, Source};
use treadle_shuffle_client::{
    Attempt, Codec, Generation, Options, Receipt, Rows, Service, Shuffle, Spec, Wait,
};

use crate::arena::{Arena, REGIONS, Used};
use crate::handles::Handles;
use crate::sizes::Sized;
use crate::thrown::{Thrown, Throws};
use crate::waiting::waiting;

static SERVICES: Handles<Service> =
    Handles::new("the connection to the shuffle service", Thrown::Gone);
static SHUFFLES: Handles<Shuffle> = Handles::new("the shuffle", Thrown::Gone);
static ARENAS: Handles<Arena> = Handles::new("the memory of a map's rows", Thrown::Closed);
static ROWS: Handles<Rows> = Handles::new("the rows of a partition", Thrown::Closed);

/// What Java calls no partition's, shuffle's or map's number.
fn number(value: jint, what: &str) -> Result<u32, Thrown> {
    let wrong = |_| Thrown::Argument(format!("{what} {value}"));
    u32::try_from(value).map_err(wrong)
}

/// A string; `None`: null.
fn text(env: &Env<'_>, text: &JString<'_>) -> Result<Option<String>, Thrown> {
    match text.is_null() {
        true => Ok(None),
        false => Ok(Some(text.try_to_string(env)?)),
    }
}

fn used(env: &Env<'_>, array: &JLongArray<'_>) -> Result<Used, Thrown> {
    let mut read = [0; REGIONS];
    array.get_region(env, 0, &mut read)?;
    let wrong = |_| Thrown::Argument(format!("lengths {read:?}"));
    let mut used = Used::default();
    for (used, read) in used.iter_mut().zip(read) {
        *used = usize::try_from(read).map_err(wrong)?;
    }
    Ok(used)
}

/// How a process connects. `settings`: the secret's file, the authority, the certificate, its key, the address of an own
/// master, and the part of the servers for its shuffles, each of which may be null; and `true` to connect to other
/// machines without TLS.
fn options(
    env: &mut Env<'_>,
    name: &JString<'_>,
    application: jlong,
    settings: &JObjectArray<'_, JString<'_>>,
    insecure: bool,
) -> Result<Options, Thrown> {
    let mut given = Vec::new();
    for at in 0..settings.len(env)? {
        let setting = settings.get_element(env, at)?;
        given.push(text(env, &setting)?);
    }
    let [secret, authority, certificate, key, listen, place] = &given[..] else {
        return Err(Thrown::Argument(format!("{} settings", given.len())));
    };
    let mut options = Options::new();
    if let Some(name) = text(env, name)? {
        options = options.name(name);
    }
    if application != 0 {
        options = options.application(application.cast_unsigned());
    }
    if let Some(secret) = secret {
        options = options.secret_file(secret)?;
    }
    match (authority, certificate, key) {
        (Some(authority), Some(certificate), Some(key)) => {
            options = options.tls(authority, certificate, key);
        }
        (None, None, None) => {}
        _ => {
            let text = "the authority, the certificate and its key: give all three, or none";
            return Err(Thrown::Argument(text.into()));
        }
    }
    if let Some(listen) = listen {
        options = options.listen(listen);
    }
    if let Some(place) = place {
        options = options.place(place)?;
    }
    Ok(match insecure {
        true => options.insecure(),
        false => options,
    })
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_connect<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    address: JString<'local>,
    own_master: jboolean,
    name: JString<'local>,
    application: jlong,
    settings: JObjectArray<'local, JString<'local>>,
    insecure: jboolean,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jlong {
    env.with_env(|env| {
        let options = options(env, &name, application, &settings, insecure)?;
        let options = options.own_master(own_master);
        let address = text(env, &address)?.unwrap_or_default();
        let connect = |wait: &mut Wait<'_>| Ok(Service::connect(&address, options, wait)?);
        waiting(env, millis, &interrupt, connect).map(|service| SERVICES.open(service))
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_master<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
) -> JString<'local> {
    env.with_env(|env| Ok(JString::from_str(env, SERVICES.get(service)?.master())?))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_application<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
) -> jlong {
    env.with_env(|_| Ok(SERVICES.get(service)?.application().cast_signed()))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_servers<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jint {
    env.with_env(|env| {
        let service = SERVICES.get(service)?;
        let state = waiting(env, millis, &interrupt, |wait| Ok(service.state(wait)?))?;
        let state: Value = serde_json::from_str(&state)
            .map_err(|error| Thrown::Argument(format!("the state of the service: {error}")))?;
        Ok(state["servers"].as_array().map_or(0, Vec::len) as jint)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_records<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
    millis: jlong,
    interrupt: JObject<'local>,
) -> JString<'local> {
    env.with_env(|env| {
        let service = SERVICES.get(service)?;
        let records = waiting(env, millis, &interrupt, |wait| Ok(service.records(wait)?))?;
        Ok(JString::from_str(env, records)?)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_writtenBy<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
    shuffle: jlong,
    stages: JString<'local>,
) {
    env.with_env(|env| {
        let stages = text(env, &stages)?.unwrap_or_default();
        SERVICES
            .get(service)?
            .written_by(shuffle.cast_unsigned(), &stages);
        Ok(())
    })
    .resolve::<Throws>();
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_over<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
) -> jboolean {
    env.with_env(|_| Ok(SERVICES.get(service)?.over().is_some()))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_close<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
) {
    env.with_env(|_| {
        if let Some(service) = SERVICES.close(service) {
            service.close();
        }
        Ok(())
    })
    .resolve::<Throws>();
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_register<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
    name: JString<'local>,
    maps: jint,
    partitions: jint,
    copies: jint,
    expected: jlong,
    codec: JString<'local>,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jlong {
    env.with_env(|env| {
        let service = SERVICES.get(service)?;
        let (maps, partitions) = (number(maps, "maps")?, number(partitions, "partitions")?);
        let mut spec = Spec::new(maps, partitions).copies(number(copies, "copies")?);
        spec = spec.expected(u64::try_from(expected).unwrap_or_default());
        if let Some(name) = text(env, &name)? {
            spec = spec.name(name);
        }
        if let Some(codec) = text(env, &codec)? {
            let unknown = || Thrown::Argument(format!("compression by {codec}"));
            spec = spec.compressed(Codec::named(&codec).ok_or_else(unknown)?);
        }
        let register = |wait: &mut Wait<'_>| Ok(service.register(&spec, wait)?);
        waiting(env, millis, &interrupt, register).map(|shuffle| SHUFFLES.open(shuffle))
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_attach<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    service: jlong,
    shuffle: jlong,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jlong {
    env.with_env(|env| {
        let service = SERVICES.get(service)?;
        let number = shuffle.cast_unsigned();
        let attach = |wait: &mut Wait<'_>| Ok(service.attach(number, wait)?);
        waiting(env, millis, &interrupt, attach).map(|shuffle| SHUFFLES.open(shuffle))
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_number<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
) -> jlong {
    env.with_env(|_| Ok(SHUFFLES.get(shuffle)?.number().cast_signed()))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_copies<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
) -> jint {
    env.with_env(|_| Ok(SHUFFLES.get(shuffle)?.copies() as jint))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_detach<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
) {
    env.with_env(|_| {
        drop(SHUFFLES.close(shuffle));
        Ok(())
    })
    .resolve::<Throws>();
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_finish<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
    millis: jlong,
    interrupt: JObject<'local>,
) {
    env.with_env(|env| match SHUFFLES.close(shuffle) {
        None => Ok(()),
        Some(shuffle) => waiting(env, millis, &interrupt, |wait| {
            Ok(shuffle.raw().finish(wait).map(drop)?)
        }),
    })
    .resolve::<Throws>();
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_arena<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
) -> jlong {
    env.with_env(|_| Ok::<_, Thrown>(ARENAS.open(Arena::default())))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_grow<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    arena: jlong,
    region: jint,
    capacity: jlong,
) -> jlong {
    env.with_env(|_| {
        let arena = ARENAS.get(arena)?;
        let wrong = |_| Thrown::Argument(format!("{capacity} bytes"));
        let capacity = usize::try_from(capacity).map_err(wrong)?;
        let start = arena.grow(number(region, "region")? as usize, capacity)?;
        Ok(start.as_ptr() as jlong)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_spill<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    arena: jlong,
    lengths: JLongArray<'local>,
    directories: JObjectArray<'local, JString<'local>>,
) -> jlong {
    env.with_env(|env| {
        let used = used(env, &lengths)?;
        let mut given = Vec::new();
        for at in 0..directories.len(env)? {
            let directory = directories.get_element(env, at)?;
            given.push(PathBuf::from(text(env, &directory)?.unwrap_or_default()));
        }
        Ok(ARENAS.get(arena)?.spill(used, &given)? as jlong)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_free<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    arena: jlong,
) {
    env.with_env(|_| {
        drop(ARENAS.close(arena));
        Ok(())
    })
    .resolve::<Throws>();
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_push<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
    map: jint,
    again: jboolean,
    replaces: jboolean,
    arena: jlong,
    lengths: JLongArray<'local>,
    sizes: JLongArray<'local>,
    millis: jlong,
    interrupt: JObject<'local>,
) -> JByteArray<'local> {
    env.with_env(|env| {
        let shuffle = SHUFFLES.get(shuffle)?;
        let arena = ARENAS.get(arena)?;
        let used = used(env, &lengths)?;
        let map = number(map, "map")?;
        let attempt = Attempt::default().again(again).replaces(replaces);
        let partitions = shuffle.partitions();
        let (receipt, stored) = arena.with(used, partitions, |rows| {
            let packed = shuffle.codec().map(|codec| Packed {
                source: rows,
                codec,
            });
            let source: &dyn Source = match &packed {
                Some(packed) => packed,
                None => rows,
            };
            let sized = Sized::new(source, partitions);
            let receipt = waiting(env, millis, &interrupt, |wait| {
                Ok(shuffle.raw().push(map, attempt, &sized, wait)?)
            })?;
            Ok((receipt, sized.sizes(&rows.sizes())))
        })?;
        sizes.set_region(env, 0, &stored)?;
        Ok(env.byte_array_from_slice(&receipt.to_bytes())?)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_commit<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
    receipts: JObjectArray<'local, JByteArray<'local>>,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jint {
    env.with_env(|env| {
        let shuffle = SHUFFLES.get(shuffle)?;
        let mut read = Vec::new();
        for at in 0..receipts.len(env)? {
            let bytes = receipts.get_element(env, at)?;
            read.push(Receipt::from_bytes(&env.convert_byte_array(&bytes)?)?);
            env.delete_local_ref(bytes);
        }
        let commit = |wait: &mut Wait<'_>| Ok(shuffle.commit(&read, wait)?);
        waiting(env, millis, &interrupt, commit).map(|generation| generation.0.cast_signed())
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_lost<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
    millis: jlong,
    interrupt: JObject<'local>,
) -> JLongArray<'local> {
    env.with_env(|env| {
        let shuffle = SHUFFLES.get(shuffle)?;
        let lost = waiting(env, millis, &interrupt, |wait| Ok(shuffle.lost(wait)?))?;
        let lost: Vec<jlong> = lost.into_iter().map(jlong::from).collect();
        longs(env, &lost)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_restarted<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jint {
    env.with_env(|env| {
        let shuffle = SHUFFLES.get(shuffle)?;
        let restarted = |wait: &mut Wait<'_>| Ok(shuffle.restarted(wait)?);
        // A master of an earlier release does not say which: then it is later than all.
        let most = |generation: Generation| jint::try_from(generation.0).unwrap_or(jint::MAX);
        waiting(env, millis, &interrupt, restarted).map(most)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_read<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    shuffle: jlong,
    generation: jint,
    partition: jint,
    first: jint,
    end: jint,
    millis: jlong,
    interrupt: JObject<'local>,
) -> jlong {
    env.with_env(|env| {
        let shuffle = SHUFFLES.get(shuffle)?;
        let partition = number(partition, "partition")?;
        let maps = number(first, "map")?..number(end, "map")?;
        let reader = shuffle.reader(Generation(generation.cast_unsigned()));
        let read = waiting(env, millis, &interrupt, |wait| {
            let is_whole = maps == (0..shuffle.maps());
            Ok(match is_whole {
                true => reader.read(partition, wait)?,
                false => reader.read_maps(partition, maps, wait)?,
            })
        });
        Ok(ROWS.open(read?))
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_pieces<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    rows: jlong,
) -> JLongArray<'local> {
    env.with_env(|env| {
        let rows = ROWS.get(rows)?;
        let mut pieces = Vec::new();
        for (map, bytes) in rows.pieces() {
            let (start, length) = (bytes.as_ptr() as jlong, bytes.len() as jlong);
            pieces.extend([start, length, map.into()]);
        }
        longs(env, &pieces)
    })
    .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_stored<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    rows: jlong,
) -> jlong {
    env.with_env(|_| Ok(ROWS.get(rows)?.stored().cast_signed()))
        .resolve::<Throws>()
}

#[unsafe(no_mangle)]
extern "system" fn Java_io_treadle_spark_service_Native_release<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    rows: jlong,
) {
    env.with_env(|_| {
        drop(ROWS.close(rows));
        Ok(())
    })
    .resolve::<Throws>();
}

fn longs<'local>(env: &mut Env<'local>, values: &[jlong]) -> Result<JLongArray<'local>, Thrown> {
    let array = JLongArray::new(env, values.len())?;
    array.set_region(env, 0, values)?;
    Ok(array)
}
