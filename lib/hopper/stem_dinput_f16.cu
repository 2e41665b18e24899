#include "hopper/stem_dinput_instances.h"

namespace knnconv::hopper {
template gpu::Status LaunchStemDinput<gpu::Half>(const gpu::LaunchSite&, const gpu::TapGemm&,
                                                  const StemDinputPlan&, int);
}  // namespace knnconv::hopper
