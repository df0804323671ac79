//! Compiles the wire schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../../proto";
    let schemas = [
        "cluster.proto",
        "data.proto",
        "broadcast.proto",
        "shuffle.proto",
    ];
    for schema in schemas {
        println!("cargo::rerun-if-changed={proto}/{schema}");
    }
    let files = protox::compile(schemas, [proto])?;
    // Views of the packet, not copies.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
