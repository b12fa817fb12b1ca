"""Build settings: custom flags, which provide their values."""

BuildSettingInfo = provider(fields = ["value"])

def _build_setting_impl(ctx):
    return BuildSettingInfo(value = ctx.build_setting_value)

bool_flag = rule(implementation = _build_setting_impl, build_setting = config.bool(flag = True))
string_flag = rule(implementation = _build_setting_impl, build_setting = config.string(flag = True))
