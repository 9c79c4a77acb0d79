"""From raws to one point cloud of the scene: simulate, calibrate, make depth, fuse.

Run it as it is: `python examples/raws_to_cloud.py`. It writes into the folder `raws_to_cloud`, and
a second run takes what is there. With raws of your own, leave out the simulation.
"""

from pathlib import Path

import lifcal

FOLDER = Path("raws_to_cloud")
VOXEL_MM = 4.0


def main() -> None:
    """Make fused.ply of a simulated desk."""
    recording = FOLDER / "recording"
    simulation = lifcal.Simulation(
        lifcal.SimulationOptions(camera="mini", scene="desk", frames=10, rays_per_pixel=8)
    )
    if not recording.exists():
        lifcal.write_sequence(recording, simulation)

    found = lifcal.calibrate(
        recording / "raw",
        FOLDER / "calibration",
        pixel_size_um=1000.0 * simulation.optics.camera.pixel_size_mm,
        white=recording / "white.png",
        marker_size_mm=40.0,
        points=300,
    )
    print(found.verdict)

    calibration = lifcal.open_calibration(FOLDER / "calibration")
    raws = lifcal.open_frames(recording / "raw")
    engine = lifcal.DepthEngine(calibration.camera)
    engine.set_range(raws.read(index) for index in range(0, len(raws), 3))
    fusion = lifcal.CloudFusion(VOXEL_MM)
    poses = zip(calibration.views.tolist(), calibration.world_from_cam, strict=True)
    for index, world_from_cam in poses:
        cloud = engine.run(raws.read(index)).cloud()  # in camera coordinates
        fusion.add(cloud.transform(world_from_cam))
        print(f"{raws.names[index]}: {len(cloud)} points")
    scene = fusion.result()
    lifcal.write_cloud(FOLDER / "fused.ply", scene)
    print(f"{FOLDER / 'fused.ply'}: {len(scene)} points")


if __name__ == "__main__":
    main()
