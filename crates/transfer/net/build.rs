//! Compiles the wire schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../../proto";
    println!("cargo::rerun-if-changed={proto}");
    let files = protox::compile(["transfer.proto"], [proto])?;
    prost_build::Config::new().compile_fds(files)?;
    Ok(())
}
