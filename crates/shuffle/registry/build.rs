//! Compiles the schemas without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../../proto";
    println!("cargo::rerun-if-changed={proto}/registry.proto");
    let files = protox::compile(["registry.proto"], [proto])?;
    prost_build::Config::new().compile_fds(files)?;
    #[cfg(feature = "etcd")]
    {
        println!("cargo::rerun-if-changed=etcd.proto");
        let files = protox::compile(["etcd.proto"], ["."])?;
        tonic_prost_build::configure()
            .build_server(false)
            .build_transport(false)
            .compile_fds(files)?;
    }
    Ok(())
}
