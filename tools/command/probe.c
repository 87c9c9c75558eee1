/* `spillway probe`: the limits of a drive and of the machine, from the profile or measured now. */
#include "tools/command/engine.h"

int cli_probe(const struct cli_options *o)
{
    char path[CLI_PATH_BYTES];
    const char *directory = o->operand ? o->operand : ".",
               *profile = cli_cache_path(o->drive_profile, CLI_DRIVES, path);
    const enum spw_probe_mode mode = o->redo ? SPW_PROBE_AGAIN : SPW_PROBE_UNKNOWN;
    struct spw_options options = cli_engine_options(o, 0, 1);
    struct spw_drive_options given = {
        .directory = directory, .profile = profile, .mode = mode, .io = options.io};
    struct spw_drive drive;
    struct spw_machine machine;
    struct spw_error err = {0};
    int rc = cli_measure_drive(&drive, &given, &err);
    if (rc == 0)
        rc = cli_measure_machine(&machine, &options, profile, mode, &err);
    if (rc < 0)
        return cli_fail_error(rc, &err, rc != -EIO && rc != -ENOMEM);
    cli_say_profile(&drive, &machine);
    const bool is_stored = profile && !*drive.unstored && !*machine.unstored;
    const struct cli_field fields[] = {
        {"directory", CLI_JSON(directory)},
        {"profile", CLI_OR_NULL(is_stored, CLI_JSON(profile))},
        {"drive", cli_drive_json(&drive)},
        {"machine", cli_machine_json(&machine)},
    };
    return cli_show(o, CLI_OBJECT(fields));
}
