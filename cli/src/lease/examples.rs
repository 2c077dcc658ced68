//! The examples and exit codes in the help of `bailiff lease` and its commands.

pub(crate) const LEASE: &str = "\
Examples:
  sudo bailiff lease init                    create the pool (at each boot)
  bailiff lease run -- python train.py       run on a leased GPU, and release it afterwards
  bailiff lease list                         list leases and waiting requests
  eval \"$(bailiff lease acquire)\"            lease a GPU for the lifetime of this shell
  bailiff lease release                      release that GPU before the shell exits

Exit codes: 0: success; 3: the lease belongs to another holder or is not held any more;
4: unknown lease; 64: invalid arguments; 69: no pool, or Redis does not respond; 74: the lease was
lost and the command was stopped; 75: not enough idle GPUs; 124: timeout. `run` exits with the exit
code of its command.";

pub(crate) const RUN: &str = "\
Examples:
  bailiff lease run -- python train.py       run on one GPU; wait without a time limit
  bailiff lease run -n 2 --wait 30m -- torchrun --nproc-per-node 2 train.py
                                             run on two GPUs; give up after half an hour (124)
  bailiff lease run --gpu 0,1 --nonblock -- ./job
                                             run on these GPUs, or fail with exit code 75
  bailiff lease run --max-time 4h -- ./job   stop the command after four hours
  bailiff lease run -- ./job --device {index}
                                             pass the GPU index as an argument

Exit codes:
  the command's exit code; 128 plus the signal number if a signal ended the command or the wait
  for GPUs; 126 or 127 if the command cannot be started
  124   no GPU became available within --wait; or the command was stopped by --max-time
  75    not enough idle GPUs (--nonblock)
  74    the lease was lost, and the command was stopped (--on-lost term or kill)
  69    no pool; Redis does not respond; or the GPU indexes have changed (--index)
  64    invalid flags, or more GPUs requested than the pool contains
  3     the request was cancelled by another process";

pub(crate) const ACQUIRE: &str = "\
Examples:
  eval \"$(bailiff lease acquire)\"            lease a GPU for the lifetime of this shell
  lease=$(bailiff lease acquire --wait 1h) && eval \"$lease\"
                                             check the exit code, which eval hides
  bailiff lease acquire -n 2 --for 4711 --format ids
                                             lease two GPUs until process 4711 exits
  bailiff lease acquire --duration 2h        lease for two hours, independent of any process

Exit codes: 0: success; 1: the lease could not be printed and was released; 3: the request was
cancelled by another process; 64: invalid flags, no such process, or more GPUs requested than the
pool contains; 69: no pool, Redis does not respond, or the pool has no UUIDs (--format uuid);
75: not enough idle GPUs (--nonblock); 124: no GPU became available within --wait.";

pub(crate) const ADOPT: &str = "\
Examples:
  bailiff lease adopt --gpu 3 --pid 4711     lease GPU 3 until that process exits; print the lease
  bailiff lease adopt --gpu 0,1 --pid 4711   lease both GPUs, or fail

Exit codes: 0: success; 64: invalid flags, or no such process or GPU; 69: no pool, or Redis does
not respond; 75: the GPU is already leased.";

pub(crate) const RELEASE: &str = "\
Examples:
  bailiff lease release                      release the lease named by BAILIFF_LEASE_ID
  bailiff lease release --gpu 3              release the lease on GPU 3
  bailiff lease release --mine               release your acquired or adopted leases; print how many

Exit codes: 0: the GPUs are free now, or already were; 3: the lease belongs to another holder or
to a running command, or the GPU is not leased; 4: unknown lease; 64: invalid flags, or no such
GPU; 69: no pool, or Redis does not respond.";

pub(crate) const EXTEND: &str = "\
Examples:
  bailiff lease extend $BAILIFF_LEASE_ID 2h  end the lease two hours from now
  bailiff lease extend --redis redis://gpu1 $BAILIFF_LEASE_ID 30m

Only leases with an expiry time in a Redis pool can be extended. `acquire --duration` and
`run --max-time` create such leases.

Exit codes: 0: success; 3: the lease is not held any more; 4: unknown lease; 64: invalid flags, a
lease without an expiry time, or one in this machine's own pool; 69: Redis does not respond.";

pub(crate) const LIST: &str = "\
Examples:
  bailiff lease list
  bailiff lease list --json | jq -r '.gpus[] | select(.state == \"idle\") | .id'
  bailiff lease list --redis redis://gpu1    list the pool on a Redis server

Exit codes: 0: success; 64: invalid flags; 69: no pool, or Redis does not respond.";

pub(crate) const STATUS: &str = "\
Examples:
  bailiff lease status
  bailiff lease status --json | jq .gpus.idle   print the number of idle GPUs

Exit codes: 0: success; 64: invalid flags; 69: no pool, or Redis does not respond.";

pub(crate) const QUEUE: &str = "\
Examples:
  bailiff lease queue
  bailiff lease queue --json | jq length     print the number of waiting requests

Exit codes: 0: success; 64: invalid flags; 69: no pool, or Redis does not respond.";

pub(crate) const LOG: &str = "\
Examples:
  bailiff lease log --redis redis://gpu1     print the last 100 events
  bailiff lease log -f -n 0                  print new events only (pool in LEASE_REDIS_URL)
  bailiff lease log --json | jq -r 'select(.event == \"grant\") | .time'

Exit codes: 0: success; 64: invalid flags, or this machine's own pool, which keeps no log;
69: Redis does not respond.";

pub(crate) const INIT: &str = "\
Examples:
  sudo bailiff lease init                    add all GPUs that the driver lists
  sudo bailiff lease init --gpus 0,1,4-7     add six GPUs
  sudo bailiff lease init --gpus 0-3 --force
                                             recreate the pool, if no lease is held

Exit codes: 0: success; 64: invalid flags, the pool already exists, or no such GPU; 69: the driver
lists no GPUs (use --gpus), Redis does not respond, or the directory cannot be used; 75: --force is
set, but a lease is held.";

pub(crate) const REAP: &str = "\
Examples:
  bailiff lease reap --dry-run               print which leases would be released, and why
  bailiff lease reap                         release them, and print how many
  bailiff lease reap --legacy                also release GPUs taken with GPU.py

Exit codes: 0: success; 64: invalid flags; 69: no pool, or Redis does not respond.";
