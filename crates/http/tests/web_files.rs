//! Tests valid and invalid web configs, and the errors about invalid configs.

#![expect(clippy::disallowed_methods, reason = "the test writes the files that are read")]
#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]

use std::fs;
use std::path::Path;

use bailiff_http::web::Web;
use bailiff_lifecycle::permissions::FilePermissions;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::fs::{CWD, Mode, mkfifoat};

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
const HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

/// Creates a directory with an authority's certificate, a server certificate with its key, and the
/// key of another certificate.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let key = || KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, key()).expect("a certificate");
    let own = key();
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&own, &authority).expect("a certificate");
    for (name, text) in [
        ("ca.crt", authority.pem()),
        ("server.crt", certificate.pem()),
        ("server.key", own.serialize_pem()),
        ("other.key", key().serialize_pem()),
        ("empty.pem", String::new()),
        ("folded.key", own.serialize_pem().replace('\n', " ")),
        ("torn.key", own.serialize_pem().replacen('M', "!", 1)),
        ("torn.pem", certificate.pem()[..200].to_owned()),
    ] {
        fs::write(directory.path().join(name), text).expect("the directory is writable");
    }
    // A FIFO without a writer.
    mkfifoat(CWD, directory.path().join("pipe"), Mode::RUSR).expect("the directory is writable");
    directory
}

/// Returns the error in a config, without the file's name.
fn error_of(directory: &Path, config: &str) -> Option<String> {
    let file = directory.join("web.yml");
    fs::write(&file, config).expect("the directory is writable");
    let error = Web::open(Some(&file), FilePermissions::Strict).err()?.to_string();
    let name = file.display().to_string();
    assert!(!error.contains('\n'), "one line: {error}");
    Some(
        error
            .strip_prefix(&name)
            .expect("the error starts with the file name")
            .replace(&format!("{}/", directory.display()), ""),
    )
}

#[test]
fn what_makes_sense_is_taken() {
    let directory = directory();
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).expect("the file exists");
    let inline =
        |name: &str| read(name).lines().map(|line| format!("    {line}\n")).collect::<Vec<_>>().concat();
    let clients = format!("{TLS}  client_ca_file: ca.crt\n");
    let absolute = directory.path().join("server.crt").display().to_string();
    for config in [
        String::new(),
        "\n# nothing\n".to_owned(),
        TLS.to_owned(),
        TLS.replace("server.crt", &absolute),
        format!("tls_server_config:\n  cert: |\n{}  key: |\n{}", inline("server.crt"), inline("server.key")),
        format!("{TLS}  client_auth_type: NoClientCert\n"),
        format!("{clients}  client_auth_type: VerifyClientCertIfGiven\n"),
        format!(
            "{clients}  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [a, 10.0.0.1, '::1', 'spiffe://a/b']\n"
        ),
        format!(
            "{TLS}  min_version: TLS12\n  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n"
        ),
        format!("{TLS}  min_version: TLS13\n  cipher_suites: [TLS_AES_256_GCM_SHA384]\n"),
        format!("{TLS}  cipher_suites: [TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256]\n"),
        format!("{TLS}  cipher_suites: []\n  prefer_server_cipher_suites: false\n"),
        format!("{TLS}  curve_preferences: [CurveP384, CurveP256, X25519]\n"),
        "http_server_config: {http2: false, headers: {X-Frame-Options: sameorigin}}\n".to_owned(),
        format!("basic_auth_users:\n  alice: {HASH}\n  bob: {}\n", HASH.replace("2y", "2b")),
        "rate_limit: {interval: 100ms, burst: 20}\n".to_owned(),
        "rate_limit: {interval: 0}\n".to_owned(),
    ] {
        assert_eq!(error_of(directory.path(), &config), None, "{config}");
    }
    Web::open(None, FilePermissions::Strict).expect("a web config is optional");
}

/// Configs, each with the beginning of its error.
type Cases<'a> = &'a [(&'a str, &'a str)];

fn all_refused(cases: Cases<'_>) {
    let directory = directory();
    for (config, why) in cases {
        let config = config.replace("TLS:\n", TLS);
        let error = error_of(directory.path(), &config).expect(&config);
        assert!(error.starts_with(why), "{config}\n{error}");
        assert!(!error.contains("77, ") && !error.contains("MIG"), "a secret: {error}");
    }
}

#[test]
fn what_is_no_config_is_refused() {
    all_refused(&[
        ("tls_server_confg: {}\n", ":1: unknown field `tls_server_confg`"),
        ("http_server_config:\n  http3: true\n", ":2: unknown field `http3`"),
        ("tls_server_config:\n  key=MIG: x\n", ":2: unknown field, expected one of cert,"),
        ("basic_auth_users:\n  a=MIG: x\n  a=MIG: y\n", ":3: duplicate mapping key"),
        ("rate_limit: {}\nrate_limit: {}\n", ":2: duplicate mapping key: rate_limit"),
        ("- a\n", ":1: "),
        ("a: [\n", ":"),
        ("basic_auth_users:\n", ":1: "),
        ("tls_server_config:\n", ":1: "),
        ("TLS:\n  client_auth_type:\n", ":4: "),
        ("http_server_config: {http2: maybe}\n", ":1: "),
        (
            "http_server_config: {http2: true}\n",
            ":1: http_server_config.http2: HTTP/2 is not supported; set it to false",
        ),
        ("rate_limit: {burst: 5}\n", ":1: rate_limit: interval is missing"),
        ("rate_limit: {interval: 1s}\n", ":1: rate_limit: burst is missing"),
        ("rate_limit: {interval: 2days, burst: 1}\n", ":1: rate_limit.interval: the maximum is 24h"),
        ("rate_limit: {interval: 1s, burst: 0}\n", ":1: rate_limit.burst: 0 would refuse every request"),
        (
            "rate_limit:\n  burst: 1\n  interval: soon\n",
            ":3: rate_limit.interval: \"soon\" is not a duration",
        ),
    ]);
}

#[test]
fn certificates_that_cannot_be_shown_are_refused() {
    all_refused(&[
        ("tls_server_config: {}\n", ":1: tls_server_config: cert_file is missing"),
        ("tls_server_config: {cert_file: server.crt}\n", ":1: tls_server_config: key_file is missing"),
        ("TLS:\n  cert: x\n", ":2: tls_server_config.cert_file: tls_server_config.cert is also given"),
        ("tls_server_config:\n  cert_file: none\n", ":2: tls_server_config.cert_file: none: no such file"),
        ("tls_server_config:\n  cert_file: .\n", ":2: tls_server_config.cert_file: .: not a regular file"),
        (
            "tls_server_config:\n  cert_file: pipe\n",
            ":2: tls_server_config.cert_file: pipe: not a regular file",
        ),
        (
            "tls_server_config:\n  cert_file: empty.pem\n  key_file: server.key\n",
            ":2: tls_server_config.cert_file: empty.pem: the file contains no PEM certificate",
        ),
        (
            "tls_server_config:\n  cert_file: server.crt\n  key_file: folded.key\n",
            ":3: tls_server_config.key_file: folded.key: invalid PEM: a section has no END line; BEGIN and END must be on separate lines",
        ),
        (
            "tls_server_config:\n  cert_file: server.crt\n  key_file: torn.key\n",
            ":3: tls_server_config.key_file: torn.key: invalid PEM: invalid base64 between BEGIN and END",
        ),
        (
            "tls_server_config:\n  cert_file: torn.pem\n  key_file: server.key\n",
            ":2: tls_server_config.cert_file: torn.pem: invalid PEM",
        ),
        (
            "tls_server_config:\n  cert_file: server.crt\n  key_file: server.crt\n",
            ":3: tls_server_config.key_file: server.crt: the file contains no unencrypted PEM private key",
        ),
        (
            "tls_server_config:\n  cert_file: server.crt\n  key_file: other.key\n",
            ":2: tls_server_config.cert_file: server.crt: the key does not match this certificate",
        ),
        (
            "tls_server_config:\n  cert: x\n  key_file: server.key\n",
            ":2: tls_server_config.cert: the file contains no PEM certificate",
        ),
    ]);
}

#[test]
fn what_is_asked_of_clients_has_to_mean_something() {
    const TYPE: &str = ":4: tls_server_config.client_auth_type: ";
    let because = |why: &str| format!("{TYPE}{why}");
    all_refused(&[
        (
            "TLS:\n  client_auth_type: RequireAnyClientCert\n",
            &because("RequireAnyClientCert does not verify certificates"),
        ),
        (
            "TLS:\n  client_auth_type: RequestClientCert\n",
            &because("RequestClientCert does not verify certificates"),
        ),
        ("TLS:\n  client_auth_type: yes\n", &because("\"yes\" is not a valid value; use NoClientCert")),
        ("TLS:\n  client_auth_type: RequireAndVerifyClientCert\n", &because("client_ca_file is missing")),
        (
            "TLS:\n  client_ca_file: ca.crt\n",
            ":4: tls_server_config.client_ca_file: ca.crt: client certificates are not requested",
        ),
        (
            "TLS:\n  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: empty.pem\n",
            ":5: tls_server_config.client_ca_file: empty.pem: the file contains no PEM certificate",
        ),
        (
            "TLS:\n  client_allowed_sans: [a]\n",
            ":4: tls_server_config.client_allowed_sans: this key requires client_auth_type: RequireAndVerifyClientCert",
        ),
        (
            "TLS:\n  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.crt\n  client_allowed_sans: [a]\n",
            ":6: tls_server_config.client_allowed_sans: this key requires",
        ),
        (
            "TLS:\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans: []\n",
            ":6: tls_server_config.client_allowed_sans: the list is empty",
        ),
        (
            "TLS:\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans:\n  - a\n  - b@c\n",
            ":8: tls_server_config.client_allowed_sans: \"b@c\" is not a DNS name",
        ),
    ]);
}

#[test]
fn cryptography_that_is_not_spoken_is_refused_with_what_is() {
    all_refused(&[
        (
            "TLS:\n  min_version: TLS11\n",
            ":4: tls_server_config.min_version: TLS11 is insecure and not supported; use TLS12 or TLS13",
        ),
        ("TLS:\n  max_version: TLS10\n", ":4: tls_server_config.max_version: TLS10 is insecure"),
        (
            "TLS:\n  max_version: '1.3'\n",
            ":4: tls_server_config.max_version: \"1.3\" is not a supported version",
        ),
        (
            "TLS:\n  min_version: TLS13\n  max_version: TLS12\n",
            ":5: tls_server_config.max_version: max_version is below min_version",
        ),
        (
            "TLS:\n  cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n",
            ":4: tls_server_config.cipher_suites: TLS_RSA_WITH_AES_128_CBC_SHA is not supported",
        ),
        (
            "TLS:\n  cipher_suites:\n  - TLS_AES_128_GCM_SHA256\n",
            ":5: tls_server_config.cipher_suites: the list contains no cipher suite for TLS12",
        ),
        (
            "TLS:\n  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
            ":5: tls_server_config.cipher_suites: TLS_AES_128_GCM_SHA256 belongs to a TLS version",
        ),
        (
            "TLS:\n  curve_preferences: [CurveP521]\n",
            ":4: tls_server_config.curve_preferences: CurveP521 is not supported; choose from X25519",
        ),
    ]);
}

#[test]
fn invalid_users_and_headers_are_refused_without_secrets_in_errors() {
    let costly = format!("basic_auth_users:\n  a: {}\n", HASH.replace("$10$", "$15$"));
    let colon = format!("basic_auth_users:\n  'a:b': {HASH}\n");
    all_refused(&[
        ("basic_auth_users: {}\n", ":1: basic_auth_users: the map is empty"),
        (
            "basic_auth_users:\n  a: hunter2\n",
            ":2: basic_auth_users.a: not a bcrypt hash; create one with `htpasswd -nBC 10 NAME`",
        ),
        (
            "basic_auth_users:\n  \"a\\nlevel=info\": hunter2\n",
            ":2: basic_auth_users.a\\nlevel=info: not a bcrypt hash",
        ),
        (&costly, ":2: basic_auth_users.a: the cost must be from 4 to 14"),
        (&colon, ":2: basic_auth_users.a:b: user names must not contain a colon"),
        (
            "http_server_config:\n  headers: {Server: x}\n",
            ":2: http_server_config.headers.Server: this header cannot be set; supported headers: Content-Security-Policy, ",
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: allow}}\n",
            ":1: http_server_config.headers.X-Frame-Options: \"allow\" is not a valid value; use deny or sameorigin",
        ),
        (
            "http_server_config: {headers: {X-XSS-Protection: ''}}\n",
            ":1: http_server_config.headers.X-XSS-Protection: the value is empty",
        ),
        (
            "http_server_config: {headers: {Content-Security-Policy: \"a\\nb\"}}\n",
            ":1: http_server_config.headers.Content-Security-Policy: the value contains characters",
        ),
    ]);
    let directory = directory();
    for config in [
        "basic_auth_users:\n  a: hunter2\n",
        "basic_auth_users: [hunter2]\n",
        "basic_auth_users: {a: {hunter2: x}}\n",
        "hunter2\n",
    ] {
        assert!(!error_of(directory.path(), config).expect(config).contains("hunter2"), "{config}");
    }
}
