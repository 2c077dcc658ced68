//! Tests processes as shown by `/proc`.

use super::*;

fn seen<'a>(exe: Option<&'a str>, cmdline: &'a str, environ: Option<&'a str>) -> Option<Part> {
    ProcessView { exe, cmdline: cmdline.as_bytes(), environ: environ.map(str::as_bytes) }.part()
}

fn daemon(cmdline: &str, environ: Option<&str>) -> Daemon {
    match seen(Some("/usr/bin/nvidia-cuda-mps-control"), cmdline, environ) {
        Some(Part::Daemon(daemon)) => daemon,
        other => panic!("{cmdline:?} is {other:?}"),
    }
}

#[test]
fn daemon_is_recognized_by_program_and_flag() {
    const CONTROL: &str = "nvidia-cuda-mps-control\0-d\0";
    assert!(matches!(seen(None, CONTROL, None), Some(Part::Daemon(_))));
    assert!(matches!(
        seen(Some("/x/nvidia-cuda-mps-control (deleted)"), CONTROL, None),
        Some(Part::Daemon(_))
    ));
    assert_eq!(
        seen(Some("/usr/bin/nvidia-cuda-mps-control"), "nvidia-cuda-mps-control\0", None),
        Some(Part::Asker)
    );
    assert_eq!(seen(Some("/usr/bin/python3"), CONTROL, None), None, "any process can choose its arguments");
    assert_eq!(seen(None, "sleep\0nvidia-cuda-mps-control\0-d\0", None), None);
    assert_eq!(seen(None, "", None), None);
}

#[test]
fn a_server_has_its_daemons_directories() {
    let environ = "A=1\0CUDA_MPS_PIPE_DIRECTORY=/run/mps0/\0CUDA_MPS_LOG_DIRECTORY=/log/mps0\0";
    let directories = Directories { pipes: "/run/mps0".into(), logs: "/log/mps0".into() };
    let server = |environ| seen(None, "/usr/bin/nvidia-cuda-mps-server\0", environ);
    assert_eq!(server(Some(environ)), Some(Part::Server(Some(directories))));
    assert_eq!(
        server(None),
        Some(Part::Server(None)),
        "an unreadable environment does not mean the default directories"
    );
    assert_eq!(server(Some("CUDA_MPS_PIPE_DIRECTORY=mps\0")), Some(Part::Server(None)));
}

#[test]
fn directories_have_defaults() {
    let usual = Directories { pipes: DEFAULT_PIPES.into(), logs: DEFAULT_LOGS.into() };
    for environ in ["", "CUDA_MPS_PIPE_DIRECTORY=\0", "XCUDA_MPS_PIPE_DIRECTORY=/x\0"] {
        assert_eq!(daemon("x\0-d\0", Some(environ)).directories, Some(usual.clone()), "{environ:?}");
    }
}

#[test]
fn flags_and_gpus_are_read() {
    let plain = Flags { foreground: false, static_partitioning: false, multiuser: false, protocol: 2 };
    let cases = [
        ("x\0-d\0", "", plain),
        ("x\0-f\0", "", Flags { foreground: true, ..plain }),
        ("x\0-d\0-S\0", "", Flags { static_partitioning: true, ..plain }),
        ("x\0-d\0-multiuser-server\0", "", Flags { multiuser: true, ..plain }),
        ("x\0-d\0-p\x003\0", "", Flags { protocol: 3, ..plain }),
        ("x\0-d\0-p\x003\0", "CUDA_MPS_PROTOCOL_VERSION=2\0", plain),
        ("x\0-d\0-p\0", "CUDA_MPS_PROTOCOL_VERSION=x\0", plain),
    ];
    for (cmdline, environ, expected) in cases {
        assert_eq!(daemon(cmdline, Some(environ)).flags, expected, "{cmdline:?} {environ:?}");
    }
    assert_eq!(daemon("x\0-d\0", Some("CUDA_VISIBLE_DEVICES=0,1\0")).visible.as_deref(), Some("0,1"));
    assert_eq!(daemon("x\0-d\0", Some("")).visible, None);
}
