// base/control_groups.h - the control groups of this process, versions 1 and 2.
#ifndef SLEIGH_CONTROL_GROUPS_H
#define SLEIGH_CONTROL_GROUPS_H

// Calls fn with the folder of each group of this process that has the controller ("memory", "cpu"), and with the folders of all
// parents of these groups. root: "" for this machine; tests pass the root of a folder with proc/ and sys/.
typedef void (*sl_control_group_fn)(void *ctx, int version, const char *folder);
void sl_control_groups(const char *root, const char *controller, sl_control_group_fn fn, void *ctx);

#endif
